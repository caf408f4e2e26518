"""Puts the call of a case in another state: its mode, constant inputs, memory, large numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from generators.program.case import Case, Input
from generators.program.edits import map_inputs
from generators.program.values import FLOATS
from generators.sampling.builder import draw_valid
from generators.sampling.choices import Choices
from generators.sampling.variants import reshape_views


def change_states(case: Case, c: Choices) -> Case:
    """The case with its call in one or two other states, each if that is valid:

    - `_change_mode`: torch's inference mode, or the gradient of a sum
    - `_make_constant`: some inputs need no gradient
    - `_expand`: some arguments have stride 0 along the first axis
    - `_enlarge`: an argument has large numbers; mostly another has small numbers, so that their product keeps its size
    """
    fitting = {state: weight for state, weight in _STATES.items() if case.training or state is not _make_constant}
    for state in dict.fromkeys(c.draw(fitting) for _ in range(c.draw({1: 3.0, 2: 1.0}))):
        case = draw_valid(case, partial(state, c=c))
    return case


def _change_mode(case: Case, c: Choices) -> Case:  # noqa: ARG001 - as other states
    if case.training:
        return replace(case, mode="training_on_sum")
    return case if case.dynamic or case.calls else replace(case, mode="inference_mode")


def _make_constant(case: Case, c: Choices) -> Case:
    names = [item.name for item in case.inputs if item.is_differentiated]
    chosen = (c.subset(names, 0.5) or names[:1])[: len(names) - 1]
    return map_inputs(case, lambda item: replace(item, requires_grad=item.name not in chosen))


def _expand(case: Case, c: Choices) -> Case:
    long = [item.name for item in _list_floats(case) if len(item.shape) > 1 and item.shape[0].value(case.sizes) > 1]
    expanded = dict.fromkeys(c.subset(long, 0.5) or long[-1:], "expanded")
    return reshape_views(map_inputs(case, lambda item: replace(item, layout=expanded.get(item.name, item.layout))))


def _enlarge(case: Case, c: Choices) -> Case:
    normal = [item for item in _list_floats(case) if item.values.kind == "normal" and item.values.given is None]
    if not normal:
        return case
    large, small, factor = c.pick(normal), c.pick(normal), c.pick((256.0, 1000.0))
    factors = {**({small: 1 / factor} if c.chance(0.7) else {}), large: factor}
    scaled = {item: replace(item.values, scale=item.values.scale * by) for item, by in factors.items()}
    return map_inputs(case, lambda item: replace(item, values=scaled.get(item, item.values)))


def _list_floats(case: Case) -> list[Input]:
    return [item for item in case.arguments if item.dtype in FLOATS]


_STATES: dict[Callable[..., Case], float] = {_change_mode: 3.0, _make_constant: 3.0, _expand: 2.0, _enlarge: 2.0}
