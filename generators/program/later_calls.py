"""Later calls of a case's module: checks, and the program that runs at each of them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from generators.errors import add_place, require
from generators.program.case import Case, Input, LaterCall
from generators.program.dtypes import FLOATS
from generators.program.memory import keeps_graph
from generators.program.ops import OPS

VALUES = ("equal", "same", "other")
MODES = ("", "training", "inference", "no_grad", "inference_mode")
STEPS = ("", "sgd", "adamw")
CHANGES = {
    "sizes": "other sizes",
    "layouts": "other strides",
    "dtype": "another dtype",
    "step": "a step of an optimizer",
    "reseeds": "the random state of the first",
    "other": "other values",
    "same": "the same tensors",
    "nothing": "nothing changed",
}
"""Differences of a later call from the first, by field or value of `LaterCall`, in words. Modes are words already."""
MOST = 8
"""How many calls a case may have."""


def seed_at(case: Case, call: LaterCall) -> int:
    """The number that this call adds to the seeds of its arguments."""
    return 100 * (1 + case.calls.index(call)) if call.values == "other" else 0


def at_call(case: Case, call: LaterCall) -> Case:
    """The program that this call runs, by itself."""
    sizes, layouts, seed = dict(call.sizes), dict(call.layouts), seed_at(case, call)
    # The dtype of a call is that of all arguments with the first floating dtype.
    cast = next((item.dtype for item in case.inputs if item.dtype in FLOATS and not item.parameter), "")

    def change(item: Input) -> Input:
        if item.parameter:
            return item
        values = replace(item.values, seed=item.values.seed + seed)
        dtype = call.dtype if call.dtype and item.dtype == cast else item.dtype
        return replace(item, dtype=dtype, layout=layouts.get(item.name, item.layout), values=values)

    return replace(
        case,
        dims=tuple((name, sizes.get(name, size)) for name, size in case.dims),
        inputs=tuple(map(change, case.inputs)),
        mode=call.under if call.under in ("training", "inference") else case.mode,
        calls=(),
    )


def check_calls(case: Case) -> None:
    """Raises CaseError where later calls make no sense."""
    with add_place("checkpoint"):
        require(case.checkpoint in ("", "full"), f"checkpoint is {case.checkpoint!r}, expected full")
        writes = any(OPS[op.kind].writes for op in case.ops if op.kind in OPS)
        require(not (case.checkpoint and writes), "what is computed again in the backward pass would write twice")
    if not case.calls:
        return
    arguments = {item.name for item in case.arguments}
    variable = list_variable(case)
    steps = {call.step for call in case.calls if call.step}
    with add_place("calls"):
        require(len(case.calls) < MOST, f"{len(case.calls) + 1} calls; at most {MOST}")
        require(not case.contracts, "a case with later calls has no contracts")
        require(not keeps_graph(case), "the next call can't differentiate values that a buffer keeps of this call")
        require(not steps or any(item.parameter for item in case.inputs), "a step without parameters")
        require(len(steps) < 2, "two optimizers")
        for name in sorted({name for call in case.calls for name, _ in call.sizes}):
            require(name in variable, f"{name} is no dimension that can vary between calls")
        for call in case.calls:
            for field, words in (("values", VALUES), ("under", MODES), ("step", STEPS)):
                given = getattr(call, field)
                require(given in words, f"{field} is {given!r}, expected one of {', '.join(filter(None, words))}")
            require(call.dtype in ("", *FLOATS), f"dtype is {call.dtype!r}, expected one of {', '.join(FLOATS)}")
            named = {name for name, _ in call.layouts}
            require(named <= arguments, f"layouts of {', '.join(sorted(named - arguments))}: no argument")
            plain = not (call.sizes or call.layouts or call.dtype)
            require(call.values != "same" or plain, "the same tensors have the same sizes, layouts and dtype")


def list_differences(case: Case) -> list[str]:
    """The differences of later calls from the first: keys of `CHANGES`, and modes such as `inference`."""
    given = {
        (field.name, value)
        for call in case.calls
        for field in fields(call)
        if (value := getattr(call, field.name)) != field.default
    }
    return sorted({name if name in CHANGES else value for name, value in given})


def describe_differences(case: Case) -> str:
    """The differences of later calls from the first, in words."""
    return " and ".join(CHANGES.get(name, name) for name in list_differences(case) or ["nothing"])


def drop_unknown(case: Case) -> Case:
    """The case whose calls name only dimensions that can vary, and arguments."""
    variable, arguments = list_variable(case), {item.name for item in case.arguments}
    calls = tuple(
        replace(
            call,
            sizes=tuple(item for item in call.sizes if item[0] in variable),
            layouts=tuple(item for item in call.layouts if item[0] in arguments),
        )
        for call in case.calls
    )
    return replace(case, calls=calls)


def list_variable(case: Case) -> set[str]:
    """The dimensions that may differ between calls: an argument shows them and no parameter has them."""
    variable = {str(size) for item in case.arguments for size in item.shape if size.is_name}
    return variable - {name for item in case.inputs if item.parameter for size in item.shape for name in size.names()}


def rename_in_calls(case: Case, names: Mapping[str, str]) -> Case:
    """The case with dimensions and arguments renamed in its calls."""

    def rename(pairs: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        return tuple({names.get(name, name): value for name, value in pairs}.items())

    calls = tuple(replace(call, sizes=rename(call.sizes), layouts=rename(call.layouts)) for call in case.calls)
    return replace(case, calls=calls)
