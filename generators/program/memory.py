"""Which values of a program share memory, so that a write into a value is seen in another."""

from collections import Counter

from generators.errors import add_place, require
from generators.program.case import Case, Op
from generators.program.dtypes import category
from generators.program.ops import OPS
from generators.program.ops.spec import Memory

_VIEWS = (Memory.VIEW, Memory.CROWDED_VIEW)


def is_in_place(op: Op) -> bool:
    """Whether the operation overwrites its first argument, a new tensor that nothing else reads."""
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
    """By value, the input or result whose memory it has. A possible view counts as a view."""
    owners = {item.name: item.name for item in case.inputs}
    for op in case.ops:
        is_new = OPS[op.kind].owns_memory and not is_in_place(op)
        owners[op.name] = op.name if is_new else owners.get(op.args[0], op.args[0])
    return owners


def keeps_graph(case: Case) -> bool:
    """Whether a buffer holds, after a call in training, a value that a gradient flows through."""
    owners, flowing = find_owners(case), {i.name for i in case.inputs if category(i.dtype) == 2 and not i.is_buffer}
    for op in case.ops:
        if op.kind != "detach" and flowing.intersection(op.args):
            flowing |= {op.name, owners[op.name]} if OPS[op.kind].writes else {op.name}
    return case.training and any(item.is_buffer and item.name in flowing for item in case.inputs)


def check_memory(case: Case) -> None:
    """Raises CaseError where eager refuses a write, or where its effect depends on strides or on the order."""
    _check_in_place(case)
    if not is_written(case):
        return
    with add_place("contracts"):
        require(not case.contracts, "contracts are not allowed beside operations that write")
    owners = find_owners(case)
    leaves = {i.name for i in case.inputs if case.training and category(i.dtype) == 2 and not i.is_buffer}
    crowded: set[str] = set()
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
                require(owner not in map(owners.get, sources), f"{where}of which it also reads")
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


def _check_in_place(case: Case) -> None:
    makers = {o.name: o for o in case.ops}
    uses = Counter(name for name, _ in case.uses())
    for op in filter(is_in_place, case.ops):
        target = makers.get(op.args[0])
        with add_place("ops", op.name):
            owned = target is not None and OPS[target.kind].owns_memory and uses[target.name] == 1
            require(owned, f"op {op.name!r}: only a new tensor with no other use can be overwritten in place")
