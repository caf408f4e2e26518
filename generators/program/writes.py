"""Writes: in-place operations, the memory that values share, and reads of it by strides."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from generators.errors import add_place, require, require_of
from generators.program.case import Case, Op, TensorType
from generators.program.ops import KERNELS, OPS, complete_attributes
from generators.program.ops.spec import Memory
from generators.program.sizes import Size
from generators.reasons import Reason


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


def list_odd_views(case: Case) -> list[str]:
    """The kinds of operations between memory and what is written that leave places of it out, or give one place to
    several elements."""
    makers = case.makers
    kinds, names = set[str](), [op.args[0] for op in case.ops if OPS[op.kind].writes]
    while names:
        if (op := makers.get(names.pop())) is not None and (is_in_place(op) or not OPS[op.kind].owns_memory):
            kinds |= {"expand" if op.kind == "expand_as" else op.kind} & {"expand", "unfold"}
            names.append(op.args[0])
    return sorted(kinds)


def find_owners(case: Case) -> dict[str, str]:
    """For each value, the input or result that owns its memory. Operations that may return a view count as views."""
    shared = ((item.name, item.part) for item in case.inputs)
    owners = {name: part.of if part and not part.copied else name for name, part in shared}
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


def _check_reads_by_strides(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if `as_strided` may read outside of its operand's memory, or strides that a kernel chooses."""
    owners, expanded = find_owners(case), {item.name for item in case.inputs if item.layout == "expanded"}
    for op in [op for op in case.ops if op.kind == "as_strided"]:
        with add_place("ops", op.name):
            require(
                not (case.contracts or case.regions),
                "contracts and regions do not keep strides, as_strided does",
                Reason.STRIDES,
            )
            needed, memory = case.dependencies([op.name]), (op.args[0], owners[op.args[0]])
            chosen = [one.kind for one in case.ops if one.name in needed and one.kind in KERNELS]
            require(
                not chosen, f"op {op.name!r} depends on strides that the kernel of {chosen[:1]} chooses", Reason.STRIDES
            )
            attrs: dict[str, Any] = {"offset": 0, **dict(op.attrs)}
            steps = ((size - 1) * step for size, step in zip(attrs["sizes"], attrs["strides"], strict=True))
            last = sum(steps, Size.of(attrs["offset"])).value(case.sizes)
            room = min(math.prod(types[name].sizes(case.sizes)) for name in memory)
            fits = last < room and not expanded.intersection(memory)
            require(fits, f"op {op.name!r} reads place {last} of at most {room}", Reason.STRIDES)


def check_memory(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if eager refuses a write, or if results would depend on strides or on order."""
    _check_in_place(case)
    _check_reads_by_strides(case, types)
    if not is_written(case):
        return
    with add_place("contracts"):
        require(not case.contracts, "contracts are not allowed beside operations that write", Reason.CONTRACTED)
    memory = _Memory(case)
    for op in case.ops:
        if OPS[op.kind].writes:
            with add_place("ops", op.name):
                memory.check_write(op)
        memory.follow(op)


class _Memory:
    """The memory of values before an operation, as far as it is known."""

    def __init__(self, case: Case) -> None:
        self._case, self._owners = case, find_owners(case)
        leaves = {i.name for i in case.inputs if case.training and i.is_differentiated}
        self._leaves = leaves | {i.name for i in case.inputs if i.part and i.part.of in leaves}  # and their views
        spread = {i.name for i in case.inputs if i.layout == "expanded"}
        self._crowded = {i.name: "expand" for i in case.inputs if spread & {i.name, i.part.of if i.part else ""}}
        """By value of which several elements may have one place: the operation that made it so."""
        self._parts = set[str]()  # views that one call makes several of, and their views
        self._uncertain = set[str]()  # owners of what may be a view or a copy
        self._saved = set[str]()  # owners whose numbers a gradient needs

    def check_write(self, op: Op) -> None:
        """Raises CaseError for a write that torch refuses, warns of or leaves undefined. In torch's words:

        several elements have one place: "more than one element of the written-to tensor refers to a single memory
            location"; of masked_fill_, index_put_: "on expanded tensors is deprecated"; of windows that overlap:
            "functionalization encountered a tensor being mutated that has internal overlap"
        one of several views: "Such functions do not allow the output views to be modified inplace"; without gradients
            torch allows it
        a view or a copy: "you should not depend on the copying vs. viewing behavior" (torch.reshape)
        also reads: "some elements of the input tensor and the written-to tensor refer to a single memory location"
        """
        target, owner = op.args[0], self._owners[op.name]
        where = f"op {op.name!r} writes into {target!r}, "
        require(target not in self._leaves, f"{where}which needs a gradient", Reason.LEAF)
        crowded = self._crowded.get(target)
        fills = crowded in (None, "expand") or (crowded == "meshgrid" and not self._case.training)
        require(
            crowded is None or (fills and op.kind in FILLS),
            f"{where}of which several elements have one place",
            Reason.CROWDED,
        )
        require(
            not self._case.training or target not in self._parts,
            f"{where}one of several views: no gradient",
            Reason.ONE_OF_VIEWS,
        )
        require(owner not in self._uncertain, f"{where}which may be a view or a copy", Reason.VIEW_OR_COPY)
        require(owner not in self._saved, f"{where}which a gradient needs as it was", Reason.SAVED)
        read = {name for name in op.args[1:] if self._owners[name] == owner}
        read -= {target} if op.kind in SAME_PLACES else set()
        require(
            all(_are_apart(self._case, target, name) for name in read), f"{where}of which it also reads", Reason.OVERLAP
        )

    def follow(self, op: Op) -> None:
        spec, owner, target = OPS[op.kind], self._owners[op.name], op.args[:1]
        is_view = owner != op.name
        if is_view and not (spec.memory.is_view or spec.writes or is_in_place(op)):
            self._uncertain.add(owner)
        if is_view and op.kind != "detach" and self._leaves.intersection(target):
            self._leaves.add(op.name)
        if is_view and target[0] in self._crowded:
            self._crowded[op.name] = self._crowded[target[0]]
        elif spec.memory is Memory.CROWDED_VIEW and not _has_own_places(self._case, op):
            self._crowded[op.name] = "expand" if op.kind == "expand_as" else op.kind
        if is_view and (spec.memory is Memory.PART_VIEW or self._parts.intersection(target)):
            self._parts.add(op.name)
        if self._case.training and spec.saves and not spec.memory.is_view:
            self._saved.update(self._owners[name] for name in op.args[spec.writes :])
            self._saved.update([] if is_view else [op.name])


FILLS = ("fill_", "zero_")
"""Writes of one number everywhere, so that it does not matter that several elements have one place."""
SAME_PLACES = ("copy_", "add_", "sub_", "mul_", "div_", "pow_", "lerp_")
"""Writes whose element depends on no other place, so that they may read their target itself."""


def _has_own_places(case: Case, op: Op) -> bool:
    """Whether each element of the window view has a place of its own in memory."""
    attrs = complete_attributes(op)
    if op.kind == "unfold":
        return int(attrs["size"].value(case.sizes)) <= int(attrs["step"])
    if op.kind != "as_strided":
        return False
    pairs = zip(attrs["strides"], attrs["sizes"], strict=True)
    room = 0
    for step, size in sorted((step.value(case.sizes), size.value(case.sizes)) for step, size in pairs):
        if size > 1 and step <= room:
            return False
        room += step * max(size - 1, 0)
    return True


def _are_apart(case: Case, left: str, right: str) -> bool:
    """Whether two views of one memory are different parts of an axis, by their steps from the memory's owner."""

    def trace(name: str) -> list[Op]:
        op = case.makers.get(name)
        if op is None or OPS[op.kind].owns_memory:
            return []
        return trace(op.args[0]) + ([] if OPS[op.kind].writes else [op])

    for mine, other in zip(trace(left), trace(right), strict=False):
        if (mine.kind, mine.attrs) != (other.kind, other.attrs):
            if mine.kind == other.kind == "narrow":
                return _are_slices_apart(case, mine, other)
            at, elsewhere = ({**dict(op.attrs), "index": None} for op in (mine, other))
            return mine.kind == other.kind and mine.kind in _PARTS and at == elsewhere
    return False


def _are_slices_apart(case: Case, left: Op, right: Op) -> bool:
    (first, start, stop), (second, begin, end) = (
        (attrs["dim"], attrs["start"].value(case.sizes), attrs["stop"].value(case.sizes))
        for attrs in map(complete_attributes, (left, right))
    )
    return bool(first == second and (stop <= begin or end <= start))


_PARTS = ("select", "unbind", "chunk", "split")
"""Views of the part number `index` of an axis."""


def _check_in_place(case: Case) -> None:
    uses = Counter([*(arg for op in case.ops for arg in op.args), *case.returns])
    for op in filter(is_in_place, case.ops):
        target = case.makers.get(op.args[0])
        owned = target is not None and OPS[target.kind].owns_memory and uses[target.name] == 1
        mistake = "only a new tensor with no other use can be overwritten in place"
        require_of(op.name, owned, mistake, Reason.OVERWRITTEN)
