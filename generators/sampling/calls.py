"""Adds later calls of its module to a case, and autocasts around them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from generators.errors import require
from generators.program.calls import list_variable
from generators.program.case import AROUND, Case, LaterCall
from generators.program.emit import is_random
from generators.program.values import FLOATS, LAYOUTS
from generators.reasons import Reason
from generators.sampling.choices import Choices
from generators.sampling.dropout import add_dropout

_DIFFERENCES = {0: 1.0, 1: 6.0, 2: 3.0}
"""How many differences a call has from the first. A call without differences tests state."""
_SIZES = (1, 2, 3, 5, 8, 9, 16, 17, 33)
_DROPOUT_SHARE = 0.6  # the share of recomputed cases without dropout that get it
_VALUES = ("equal", "same", "other")


def add_call(case: Case, c: Choices) -> Case:
    """The case with a later call of its module."""
    is_trained = case.training and any(item.parameter and item.dtype in FLOATS for item in case.inputs)
    step = next((call.step for call in case.calls if call.step), c.pick(("sgd", "adamw"))) if is_trained else ""
    base = replace(case, contracts=(), dynamic=False)
    return replace(base, calls=(*case.calls, _draw_call(base, c, step)))


def recompute(case: Case, c: Choices) -> Case:
    """The case whose operations are recomputed in the backward pass: recomputed dropout must draw the same numbers."""
    dropped = case if is_random(case) or c.chance(1 - _DROPOUT_SHARE) else add_dropout(case)
    return replace(dropped, checkpoint="full", contracts=())


def add_sizes(case: Case, c: Choices) -> Case:
    """The case with a later call in which sizes differ. Raises CaseError if no size may."""
    call = LaterCall(sizes=draw_sizes(case, c), values="other")
    require(bool(call.sizes), "no size varies", Reason.NOTHING)
    return replace(case, calls=(*case.calls, call), contracts=(), dynamic=False)


def add_around(case: Case, c: Choices) -> Case:
    """The case with autocasts around its calls. Raises CaseError if the draw has none.

    Half of the cases in training have them around backward passes too. Most cases without later calls get some: with
    another autocast, and often without gradients.
    """
    first = c.draw({"": 2.0, "bfloat16": 4.0, "float16": 2.0, "bfloat16+uncached": 1.0, "float16+uncached": 0.5})
    calls = case.calls or (LaterCall(),) * c.draw({0: 3.0, 1: 5.0, 2: 2.0})
    calls = tuple(_draw_around(case, call, c) for call in calls)
    drawn = replace(case, around=first, calls=calls, contracts=(), dynamic=False)
    require(drawn.has_around, "no call has an autocast around", Reason.NOTHING)
    return replace(drawn, around_backward=drawn.may_train and c.chance(0.5))


def _draw_around(case: Case, call: LaterCall, c: Choices) -> LaterCall:
    around = c.draw({"": 3.0, **dict.fromkeys(AROUND, 1.0), "kept": 3.0})
    under = call.under or (_draw_mode(case, c) if c.chance(0.4) else "")
    return replace(call, around=around, under=under, values=call.values if call != LaterCall() else c.pick(_VALUES))


def _draw_call(case: Case, c: Choices, step: str) -> LaterCall:
    call = LaterCall()
    for _ in range(c.draw(_DIFFERENCES)):
        field = c.draw({name: weight for name, (weight, _) in _FIELDS.items()})
        value: Any = step if field == "step" else _FIELDS[field][1](case, c)
        call = replace(call, **{field: value})
    if call.sizes or call.layouts or call.dtype:
        call = replace(call, values="equal" if call.values == "same" else call.values)
    return call


def draw_sizes(case: Case, c: Choices) -> tuple[tuple[str, int], ...]:
    """Other sizes for one or two dimensions that may vary, if there are any."""
    variable = sorted(list_variable(case))
    names = sorted({c.pick(variable) for _ in range(c.draw({1: 3.0, 2: 1.0}))}) if variable else []
    found = [(name, c.pick((*_SIZES, case.sizes[name] + 1, 2 * case.sizes[name]))) for name in names]
    return tuple((name, size) for name, size in found if size != case.sizes[name])


def _draw_layouts(case: Case, c: Choices) -> tuple[tuple[str, str], ...]:
    item = c.pick(case.arguments)
    fitting = [name for name, layout in LAYOUTS.items() if len(item.shape) >= max(1, layout.min_rank)]
    return ((item.name, c.pick(fitting)),) if fitting else ()


def _draw_mode(case: Case, c: Choices) -> str:
    other = "inference" if case.training else "training"
    return c.draw({other: 4.0, "inference_mode": 1.0, "no_grad": 1.0 if case.training else 0.0})


def _draw_dtype(case: Case, c: Choices) -> str:
    floats = [item.dtype for item in case.arguments if item.dtype in FLOATS]
    return c.pick([name for name in FLOATS[:3] if name != floats[0]]) if floats else ""


_FIELDS: dict[str, tuple[float, Callable[[Case, Choices], Any]]] = {
    "sizes": (5.0, draw_sizes),
    "layouts": (2.5, _draw_layouts),
    "under": (3.0, _draw_mode),
    "values": (3.0, lambda _, c: c.draw({"same": 1.0, "other": 1.0})),
    "dtype": (1.5, _draw_dtype),
    "reseeds": (1.0, lambda case, _: is_random(case)),
    "step": (3.0, lambda *_: ""),  # the optimizer is that of the earlier calls
}
"""How often a field of a later call is drawn, and its value, or its default if this makes no sense for the case."""
