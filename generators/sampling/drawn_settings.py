"""Settings for a share of the cases."""

from collections.abc import Mapping
from dataclasses import replace

from generators.program.case import Case, Value
from generators.program.edits import resize
from generators.program.settings import Setting
from generators.sampling.choices import Choices

DRAWN = 0.25
"""The share of cases with settings."""
_SINGLE = 0.5
"""The share of cases with a setting that takes dimensions of 1 which have them."""
_COUNTS = {1: 4.0, 2: 4.0, 3: 2.0}


def draw_settings(case: Case, c: Choices, available: Mapping[str, Setting], share: float = DRAWN) -> Case:
    """The case, for this share of cases with one to three of the available settings and what they need."""
    fitting = {name: one.weight for name, one in available.items() if not (one.inference and case.training)}
    if case.settings or not fitting or not c.chance(share):
        return case
    drawn: dict[str, Value] = {}
    for _ in range(c.draw(_COUNTS)):
        name = c.draw(fitting)
        drawn = {**dict(available[name].needs), **drawn, name: c.pick(available[name].values)}
    sizes = dict(case.dims)
    single = {dim: 1 for name in drawn for dim in available[name].single if dim in sizes}
    if single and not case.calls and c.chance(_SINGLE):
        case = resize(case, {**sizes, **single}) or case
    return replace(case, settings=tuple(sorted(drawn.items())))
