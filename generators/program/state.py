"""State that outlives a step or a call: memory that values share, writes into it, and later calls of the module."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from generators.errors import add_place, require
from generators.program.case import Case, Input, LaterCall, Op, TensorType
from generators.program.changes import KINDS, at_state, check_changes, list_changes
from generators.program.ops import KERNELS, OPS
from generators.program.ops.spec import Memory
from generators.program.references import list_dims
from generators.program.sizes import Size
from generators.program.values import FLOATS

_VIEWS = (Memory.VIEW, Memory.CROWDED_VIEW)


def is_in_place(op: Op) -> bool:
    """Whether the operation is an in-place form, which overwrites its first argument."""
    return op.attr("form") == "in_place"


def is_written(case: Case) -> bool:
    return any(OPS[op.kind].writes for op in case.ops)


TARGETS = {"argument": "an argument", "buffer": "a buffer", "result": "a result"}
"""The targets of writes, in words."""


def list_targets(case: Case) -> list[str]:
    """The targets of writes: keys of `TARGETS`."""
    inputs, owners = {item.name: item for item in case.inputs}, find_owners(case)
    targets = (inputs.get(owners[op.name]) for op in case.ops if OPS[op.kind].writes)
    return sorted({"result" if item is None else "buffer" if item.parameter else "argument" for item in targets})


def find_owners(case: Case) -> dict[str, str]:
    """For each value, the input or result that owns its memory. Operations that may return a view count as views."""
    owners = {item.name: item.name for item in case.inputs}
    for op in case.ops:
        is_new = OPS[op.kind].owns_memory and not is_in_place(op)
        owners[op.name] = op.name if is_new else owners.get(op.args[0], op.args[0])
    return owners


def list_written(case: Case) -> set[str]:
    """The inputs and results whose memory the case writes into."""
    owners = find_owners(case)
    return {owners[op.name] for op in case.ops if OPS[op.kind].writes}


def find_target(case: Case, name: str) -> str:
    """The value that a write changes; another value itself."""
    written = next((op.args[0] for op in case.ops if op.name == name and OPS[op.kind].writes), None)
    return name if written is None else find_target(case, written)


def _has_parameters(case: Case) -> bool:
    """Whether the module has parameters, directly or in a layer (a row with a seed)."""
    own = any(item.parameter and not item.is_buffer for item in case.inputs)
    return own or any("seed" in OPS[op.kind].attributes for op in case.ops)


def keeps_graph(case: Case) -> bool:
    """Whether a buffer holds, after a call in training, a value that the gradients of a later call flow through."""
    owners, flowing = find_owners(case), {i.name for i in case.inputs if i.is_differentiated}
    for op in case.ops:
        if op.kind != "detach" and flowing.intersection(op.args):
            flowing |= {op.name, owners[op.name]} if OPS[op.kind].writes else {op.name}
    kept = {item.name for item in case.inputs if item.is_buffer} & flowing
    if not case.training:
        trains_again = [call.under for call in case.calls].count("training") > 1
        kept = kept & _find_needed(case, owners) if trains_again else set()
    return bool(kept)


def _find_needed(case: Case, owners: dict[str, str]) -> set[str]:
    """The names of all values that the returned values depend on."""
    needed = {owners.get(name, name) for name in case.returns} | {*case.returns}
    for op in reversed(case.ops):
        if op.name in needed or (OPS[op.kind].writes and owners[op.name] in needed):
            needed |= {*op.args} | {owners.get(name, name) for name in op.args}
    return needed


def _check_reads_by_strides(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if `as_strided` may read outside of its operand's memory, or strides that a kernel chooses."""
    owners, expanded = find_owners(case), {item.name for item in case.inputs if item.layout == "expanded"}
    for op in [op for op in case.ops if op.kind == "as_strided"]:
        with add_place("ops", op.name):
            require(not (case.contracts or case.regions), "contracts and regions do not keep strides, as_strided does")
            needed, memory = case.dependencies([op.name]), (op.args[0], owners[op.args[0]])
            chosen = [one.kind for one in case.ops if one.name in needed and one.kind in KERNELS]
            require(not chosen, f"op {op.name!r} depends on strides that the kernel of {chosen[:1]} chooses")
            attrs: dict[str, Any] = {"offset": 0, **dict(op.attrs)}
            steps = ((size - 1) * step for size, step in zip(attrs["sizes"], attrs["strides"], strict=True))
            last = sum(steps, Size.of(attrs["offset"])).value(case.sizes)
            room = min(math.prod(types[name].sizes(case.sizes)) for name in memory)
            fits = last < room and not expanded.intersection(memory)
            require(fits, f"op {op.name!r} reads place {last} of at most {room}")


def check_memory(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if eager refuses a write, or if results would depend on strides or on order."""
    _check_in_place(case)
    _check_reads_by_strides(case, types)
    if not is_written(case):
        return
    with add_place("contracts"):
        require(not case.contracts, "contracts are not allowed beside operations that write")
    owners = find_owners(case)
    leaves = {i.name for i in case.inputs if case.training and i.is_differentiated}
    crowded = {i.name for i in case.inputs if i.layout == "expanded"}
    uncertain: set[str] = set()
    saved: set[str] = set()
    for op in case.ops:
        target, sources = op.args[:1], op.args
        if OPS[op.kind].writes:
            sources, owner = op.args[1:], owners[op.name]
            with add_place("ops", op.name):
                where = f"op {op.name!r} writes into {op.args[0]!r}, "
                require(op.args[0] not in leaves, f"{where}which needs a gradient")
                require(op.args[0] not in crowded, f"{where}which eager does not write into")
                require(owner not in uncertain, f"{where}which may be a view or a copy")
                require(owner not in saved, f"{where}which a gradient needs as it was")
                read = [name for name in sources if owners[name] == owner]
                require(all(_are_apart(case, op.args[0], name) for name in read), f"{where}of which it also reads")
        elif owners[op.name] != op.name and OPS[op.kind].memory not in _VIEWS and not is_in_place(op):
            uncertain.add(owners[op.name])
        is_view = owners[op.name] != op.name
        if is_view and op.kind != "detach" and leaves.intersection(target):
            leaves.add(op.name)
        if OPS[op.kind].memory is Memory.CROWDED_VIEW or (is_view and crowded.intersection(target)):
            crowded.add(op.name)
        if case.training and OPS[op.kind].saves and OPS[op.kind].memory not in _VIEWS:
            saved.update(owners[name] for name in sources)
            saved.update([] if is_view else [op.name])


def _are_apart(case: Case, left: str, right: str) -> bool:
    """Whether two views of one memory are different parts of an axis, by their steps from the memory's owner."""

    def trace(name: str) -> list[Op]:
        op = case.makers.get(name)
        if op is None or OPS[op.kind].owns_memory:
            return []
        return trace(op.args[0]) + ([] if OPS[op.kind].writes else [op])

    for mine, other in zip(trace(left), trace(right), strict=False):
        if (mine.kind, mine.attrs) != (other.kind, other.attrs):
            at, elsewhere = ({**dict(op.attrs), "index": None} for op in (mine, other))
            return mine.kind == other.kind and mine.kind in _PARTS and at == elsewhere
    return False


_PARTS = ("select", "unbind", "chunk", "split")
"""Views of the part number `index` of an axis."""


def _check_in_place(case: Case) -> None:
    uses = Counter([*(arg for op in case.ops for arg in op.args), *case.returns])
    for op in filter(is_in_place, case.ops):
        target = case.makers.get(op.args[0])
        with add_place("ops", op.name):
            owned = target is not None and OPS[target.kind].owns_memory and uses[target.name] == 1
            require(owned, f"op {op.name!r}: only a new tensor with no other use can be overwritten in place")


VALUES = ("equal", "same", "other")
UNDER = ("", "training", "inference", "no_grad", "inference_mode")
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
    **{kind: row.effect for kind, row in KINDS.items()},
}
"""Differences of a later call from the first, by field or value of `LaterCall`, in words. Modes are words already."""
MOST = 8
"""How many calls a case may have."""


def seed_at(case: Case, call: LaterCall) -> int:
    """The offset of the seeds of this call's arguments."""
    return 100 * (1 + case.calls.index(call)) if call.values == "other" else 0


def at_call(case: Case, call: LaterCall) -> Case:
    """The program that this call runs, by itself: changes before it are its setup."""
    setup, cast_to = at_state(case, case.calls.index(call) + 1 if call in case.calls else 0)
    sizes, layouts, seed = dict(call.sizes), dict(call.layouts), seed_at(case, call)
    # A call's dtype applies to all arguments that share the dtype of the first floating argument.
    cast = next((item.dtype for item in case.inputs if item.dtype in FLOATS and not item.parameter), "")

    def change(item: Input) -> Input:
        if item.parameter:
            return replace(item, dtype=cast_to.get(item.name, item.dtype))
        values = replace(item.values, seed=item.values.seed + seed)
        dtype = call.dtype if call.dtype and item.dtype == cast else item.dtype
        return replace(item, dtype=dtype, layout=layouts.get(item.name, item.layout), values=values)

    return replace(
        case,
        dims=tuple((name, sizes.get(name, size)) for name, size in case.dims),
        inputs=tuple(map(change, case.inputs)),
        mode=call.under if call.under in ("training", "inference") else case.mode,
        calls=(),
        setup=setup,
    )


def check_calls(case: Case) -> None:
    """Raises CaseError if later calls make no sense."""
    with add_place("checkpoint"):
        require(case.checkpoint in ("", "full"), f"checkpoint is {case.checkpoint!r}, expected full")
        writes = any(OPS[op.kind].writes for op in case.ops if op.kind in OPS)
        require(not (case.checkpoint and writes), "a checkpointed case can't write: recomputing would write twice")
    if case.calls or case.setup:
        with add_place("calls" if case.calls else "setup"):
            check_changes(case, list_written(case))
    if not case.calls:
        return
    arguments = {item.name for item in case.arguments}
    variable = list_variable(case)
    steps = {call.step for call in case.calls if call.step}
    with add_place("calls"):
        require(len(case.calls) < MOST, f"{len(case.calls) + 1} calls; at most {MOST}")
        require(not case.contracts, "a case with later calls has no contracts")
        require(not keeps_graph(case), "the next call can't differentiate values that a buffer keeps from this call")
        require(not steps or _has_parameters(case), "a step without parameters")
        require(len(steps) < 2, "two optimizers")
        for name in sorted({name for call in case.calls for name, _ in call.sizes}):
            require(name in variable, f"{name} is no dimension that can vary between calls")
        for call in case.calls:
            for field, words in (("values", VALUES), ("under", UNDER), ("step", STEPS)):
                given = getattr(call, field)
                require(given in words, f"{field} is {given!r}, expected one of {', '.join(filter(None, words))}")
            require(call.dtype in ("", *FLOATS), f"dtype is {call.dtype!r}, expected one of {', '.join(FLOATS)}")
            named = {name for name, _ in call.layouts}
            require(named <= arguments, f"layouts of {', '.join(sorted(named - arguments))}: no argument")
            plain = not (call.sizes or call.layouts or call.dtype)
            require(call.values != "same" or plain, "the same tensors have the same sizes, layouts and dtype")


def list_differences(case: Case) -> list[str]:
    """The differences of later calls from the first, and the changes before it: keys of `CHANGES`, and modes such as
    `inference`."""
    given = {
        (field.name, value)
        for call in case.calls
        for field in fields(call)
        if (value := getattr(call, field.name)) != field.default and field.name != "changes"
    }
    kinds = {change.kind for change in list_changes(case)}
    return sorted({name if name in CHANGES else value for name, value in given} | kinds)


def describe_differences(case: Case) -> str:
    """The differences of later calls from the first, in words."""
    return " and ".join(CHANGES.get(name, name) for name in list_differences(case) or ["nothing"])


def list_variable(case: Case) -> set[str]:
    """The dimensions that may differ between calls: axes of an argument, and of no parameter."""
    variable = {str(size) for item in case.arguments for size in item.shape if size.is_name}
    return variable - list_dims(tuple(item for item in case.inputs if item.parameter))
