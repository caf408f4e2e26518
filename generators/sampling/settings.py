"""Adds settings to a case."""

from collections.abc import Mapping
from dataclasses import replace

from generators.program.case import Case, SettingValue
from generators.program.changes import KINDS, list_changes
from generators.program.edits import resize
from generators.program.settings import Setting
from generators.sampling.choices import Choices

SETTINGS_SHARE = 0.25  # the share of cases to which a campaign adds settings
_SINGLE_SHARE = 0.5  # the share of cases in which the `single` dimensions of their settings are 1
_COUNTS = {1: 4.0, 2: 4.0, 3: 2.0}


def draw_settings(case: Case, c: Choices, available: Mapping[str, Setting], share: float = SETTINGS_SHARE) -> Case:
    """Adds one to three available settings, and the settings that they need, to this share of cases."""
    # The settings for inference make constants of parameters.
    changes = any(not KINDS[change.kind].of_call for change in list_changes(case))
    fitting = {
        name: item.weight
        for name, item in available.items()
        if not (item.inference and (case.training or changes)) and (case.training or not item.training)
    }
    if case.settings or not fitting or not c.chance(share):
        return case
    drawn: dict[str, SettingValue] = {}
    for _ in range(c.draw(_COUNTS)):
        name = c.draw(fitting)
        drawn = {**dict(available[name].needs), **drawn, name: c.pick(available[name].values)}
    sizes = dict(case.dims)
    single = {dim: 1 for name in drawn for dim in available[name].single if dim in sizes}
    if single and not case.calls and c.chance(_SINGLE_SHARE):
        case = resize(case, {**sizes, **single}) or case
    return replace(case, settings=tuple(sorted(drawn.items())))
