"""Adds in-place writes to a case, through usual and odd views, reads of memory by strides, and shared memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from generators.errors import require
from generators.program.case import Case, Input, LaterCall, SharedSlice, Values, free_name
from generators.program.edits import redirect_reads
from generators.program.sizes import ONE, Size, product
from generators.program.writes import FILLS
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_TARGETS = {"value": 5.0, "clone": 3.0, "buffer": 3.0}
_VIEWS = {"narrow": 3.0, "select": 2.0, "transpose": 2.0, "unsqueeze": 1.0}
_ELEMENTWISE = {"copy_": 3.0, "add_": 2.0, "mul_": 2.0, "lerp_": 1.0, "masked_scatter_": 1.0, "masked_fill_": 1.0}
WRITES = {**_ELEMENTWISE, "set_slice": 3.0, "set_select": 2.0, "index_put_": 3.0, "index_copy_": 2.0, "index_add_": 1.5}


def insert_write(case: Case, c: Choices, *, is_odd: bool = False) -> Case:
    """The case with a write into a value that is read before or after it. Raises CaseError.

    is_odd: whether the write is through a view whose elements are spread, apart or bytes
    """
    place = c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    floats = b.list_floats(parameters=True)
    require(bool(floats), "there is nothing to write into")
    old, later, returns = c.pick(floats), case.ops[place:], [*case.returns]
    new, how = old, c.draw(_TARGETS)
    if how == "buffer":
        new = b.input("state", b.shape(old), dtype=b.dtype_of(old), buffer=True)
    elif how == "clone":
        new = b.op("clone", old)
    if is_odd:
        seen = c.draw(_ODD_VIEWS)(b, c, new)
        read = b.op("neg", seen, to="read") if c.chance(0.5) else seen
        return b.close(replace(case, contracts=()), (*returns, read), later)
    if c.chance(0.3):
        returns.append(b.op("clone", new, to="before"))
    target = new
    for _ in range(c.draw({0: 3.0, 1: 4.0, 2: 2.0})):
        target = draw_view(b, c, target)
    written = draw_write(b, c, target, floats)
    if c.chance(0.4):
        returns.append(c.pick((new, target, written)))
    if c.chance(0.6):
        later = tuple(redirect_reads(op, {old: new}) for op in later)
    changed = b.close(replace(case, contracts=()), returns, later)
    require(any(op.name == written for op in changed.ops), "no later read or result sees the write", Reason.UNREAD)
    return changed


def draw_slice(b: Builder, c: Choices, value: str) -> dict[str, Any]:
    """The attributes of a slice of the value."""
    axis = c.below(b.rank(value))
    size = b.shape(value)[axis]
    start = c.below(max(1, b.size(size)))
    stop = size - c.below(max(1, b.size(size) - start))
    return {"dim": axis, "start": start, "stop": stop, "step": c.draw({1: 6.0, 2: 1.0})}


def draw_view(b: Builder, c: Choices, value: str) -> str:
    """Adds a slice, a row, or a view with other axes."""
    kind, rank = c.draw(_VIEWS), b.rank(value)
    require(rank > 0, "a view needs an axis")
    part = draw_slice(b, c, value)
    if kind == "narrow":
        return b.op(kind, value, to="part", **part)
    if kind == "transpose":
        return b.op(kind, value, to="transposed", dim0=part["dim"], dim1=c.below(rank))
    options = {"index": part["start"]} if kind == "select" else {}
    return b.op(kind, value, to="row", dim=part["dim"], **options)


def draw_write(b: Builder, c: Choices, target: str, floats: list[str]) -> str:
    """Writes into the target: a value of its type, the target negated, or a number."""
    rank = b.rank(target)
    kind = c.draw(WRITES if rank else _ELEMENTWISE)
    alike = [name for name in floats if b.types[name].sizes(b.dims) == b.types[target].sizes(b.dims)]
    alike = [name for name in alike if b.dtype_of(name) == b.dtype_of(target) and name != target]
    values = c.pick(alike) if alike and c.chance(0.8) else b.op("neg", target, to="values")
    number = c.pick((0.5, -1.0, 0.0, 2.0))
    if kind.startswith("masked"):
        mask = b.input("mask", b.shape(target), Values("random", scale=0.5), "bool")
        return b.op(kind, target, mask, value=number) if kind == "masked_fill_" else b.op(kind, target, mask, values)
    if kind.startswith("set"):
        part = draw_slice(b, c, target)
        part = part if kind == "set_slice" else {"dim": part["dim"], "index": part["start"]}
        given = [] if c.chance(0.2) else [b.op("narrow" if "stop" in part else "select", values, to="part", **part)]
        return b.op(kind, target, *given, other=None if given else number, **part)
    if kind in ("add_", "mul_"):
        given = [] if c.chance(0.3) else [values]
        form = c.pick(("method", "operator"))
        return b.op(kind, target, *given, other=None if given else number, form=form)
    if kind in _ELEMENTWISE:
        return b.op(kind, target, values)
    return _write_indexed(b, c, kind, target, values)


def _write_indexed(b: Builder, c: Choices, kind: str, target: str, values: str) -> str:
    """Write the values to distinct places along an axis."""
    shape, axis = b.shape(target), c.below(b.rank(target))
    count = shape[axis] - c.below(min(3, max(1, b.size(shape[axis]))))
    if count != shape[axis]:
        values = b.op("narrow", values, to="part", dim=axis, stop=count)
    places = b.input("places", (count,), Values("permutation"), "int64")
    accumulate = kind == "index_put_" and axis == 0 and c.chance(0.4)
    options: dict[str, Any] = {"form": "method", "accumulate": True} if accumulate else {}
    return b.op(kind, target, places, values, dim=axis, **options)


def _fill_expanded(b: Builder, c: Choices, owner: str) -> str:
    """One number through a view with a new axis along which all elements have one place."""
    shape = b.shape(owner)
    rows = b.op("expand", owner, to="rows", sizes=(Size.of(2 + c.below(3)), *shape))
    kind = c.pick(FILLS)
    options: dict[str, Any] = {"value": c.pick((0.5, -1.0, 2.0))} if kind == "fill_" else {}
    b.op(kind, rows, **options)
    return owner


def _write_windows(b: Builder, c: Choices, owner: str) -> str:
    axis = c.below(b.rank(owner))
    length = b.size(b.shape(owner)[axis])
    require(length > 0, "an axis without elements has no windows", Reason.NOTHING)
    size = 1 + c.below(min(3, length))
    view = b.op("unfold", owner, to="windows", dim=axis, size=Size.of(size), step=size + c.below(3))
    draw_write(b, c, view, [])
    return owner


def _write_diagonal(b: Builder, c: Choices, owner: str) -> str:
    require(b.rank(owner) > 1, "a diagonal needs two axes", Reason.NOTHING)
    first = c.below(b.rank(owner))
    second = (first + 1 + c.below(b.rank(owner) - 1)) % b.rank(owner)
    draw_write(b, c, b.op("diagonal", owner, to="diagonal", dim0=first, dim1=second), [])
    return owner


def _write_part(b: Builder, c: Choices, owner: str) -> str:
    axis = c.below(b.rank(owner))
    index = c.below(max(1, b.size(b.shape(owner)[axis])))
    draw_write(b, c, b.op("unbind", owner, to="row", dim=axis, index=index), [])
    return owner


def _write_bytes(b: Builder, c: Choices, _owner: str) -> str:
    """Into the bytes of integers: float64 has no reference for those of floating values."""
    owner = b.input("bits", (2, 2 * (1 + c.below(3))), Values("signed"), c.pick(("int32", "int64")))
    owner = b.op("clone", owner, to="base") if c.chance(0.6) else owner
    view = b.op("view_dtype", owner, to="bytes", dtype=c.pick(("uint8", "int32", "int64")))
    view = draw_view(b, c, view) if c.chance(0.4) else view
    kind = c.pick(("add_", "mul_", "zero_"))
    options: dict[str, Any] = {} if kind == "zero_" else {"other": 3}
    b.op(kind, view, **options)
    return owner


_ODD_VIEWS: dict[Callable[[Builder, Choices, str], str], float] = {
    _fill_expanded: 2.0,
    _write_windows: 3.0,
    _write_diagonal: 2.0,
    _write_part: 1.0,
    _write_bytes: 2.0,
}
"""Writes through views that few write through. Each returns the value that sees the write."""


_BEFORE_STRIDES = {"": 2.0, "clone": 2.0, "contiguous": 1.0, "linear": 1.0, "expand": 1.0, "neg": 1.0, "write": 1.0}


def read_by_strides(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """A read by strides, `as_strided`, of a value, of a transposed value, or of the result of a further step."""
    step = c.draw(_BEFORE_STRIDES)
    if b.rank(value) > 1 and c.chance(0.6):
        value = b.op("transpose", value, to="turned", dim0=c.below(b.rank(value)), dim1=-1)
    if step == "linear":
        weight = b.input("weight", (b.shape(value)[-1],) * 2, dtype=b.dtype_of(value), parameter=True)
        value = b.op(step, value, weight, to="wide")
    elif step == "expand":
        value = b.op(step, b.op("unsqueeze", value, to="wide"), to="wide", sizes=(2, *b.shape(value)))
    elif step == "write":
        value = draw_write(b, c, b.op("clone", value, to="new"), [])
    elif step:
        value = b.op(step, value, to="new")
    if c.chance(0.3):
        value = draw_view(b, c, value)
    shape = b.shape(value)[step == "expand" :]
    strides, whole = [product(shape[axis + 1 :]) for axis in range(len(shape))], product(shape)
    reads = [(shape, strides), (shape[::-1], strides[::-1]), ((whole,), [ONE]), ((whole - 2, Size.of(3)), [ONE, ONE])]
    sizes, steps = c.pick(reads)
    offset = c.draw({None: 6.0, 0: 2.0})
    made = b.op("as_strided", value, to="read", sizes=tuple(sizes), strides=tuple(steps), offset=offset)
    return b.op("neg", made, to="read") if c.chance(0.7) else made


_COPIED_SHARE = 0.25  # the share of shared arguments that are apart in the first call
_APART_SHARE = 0.15  # the share of uncopied shared arguments that are apart in a later call
_OF_MODULE_SHARE = 0.4  # the share of shared arguments that are parts of a parameter or a buffer, where there are any
_VIEWED_SHARE = 0.25  # the share of results that are views: view-of-shared-arguments hides other faults of these
_WHOLE_SHARE = 0.2  # the share of shared arguments that are one tensor, passed twice


def share_arguments(case: Case, c: Choices) -> Case:
    """The case with an argument that is a part of another input, and a write into one. Raises CaseError."""
    place = c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    owner = _pick_owner(case, b, c)
    part, shape = SharedSlice(owner.name), owner.shape
    if not c.chance(_WHOLE_SHARE):
        drawn = draw_slice(b, c, owner.name)
        part = SharedSlice(owner.name, drawn["dim"], Size.of(drawn["start"]))
        shape = (*shape[: part.dim], drawn["stop"] - part.start, *shape[part.dim + 1 :])
    part = replace(part, copied=c.chance(_COPIED_SHARE))
    tail = Input(free_name("tail", b.types), shape, owner.dtype, requires_grad=not case.training, part=part)
    # The gradient of a slice of a parameter is that of the parameter, and torch writes into neither.
    is_read = case.training and owner.parameter and owner.is_differentiated
    fixed = replace(owner, requires_grad=False) if case.training and not owner.parameter else owner
    b.inputs = [*(fixed if item is owner else item for item in b.inputs), tail]
    b.types[tail.name] = tail.type
    target, seen = c.pick(((owner.name, tail.name), (tail.name, owner.name), (tail.name, tail.name)))
    for _ in range(c.draw({0: 4.0, 1: 4.0, 2: 1.0})):
        target = draw_view(b, c, target)
    if not is_read:
        draw_write(b, c, target, b.list_floats())
    read = draw_view(b, c, seen) if c.chance(_VIEWED_SHARE) else b.op("neg", seen, to="read")
    returns = [*case.returns, read, *([b.op("neg", owner.name, to="whole")] if c.chance(0.4) else [])]
    is_apart = not part.copied and c.chance(_APART_SHARE)
    later = (LaterCall(shares=part.copied, apart=is_apart),) if part.copied or is_apart else ()
    calls = (*case.calls, *later)
    return b.close(replace(case, contracts=(), calls=calls), returns, case.ops[place:])


def _pick_owner(case: Case, b: Builder, c: Choices) -> Input:
    """An argument, a parameter, or a buffer, which is added if the module has neither."""
    owners = [item for item in case.inputs if b.is_float(item.name) and item.shape and item.part is None]
    require(bool(owners), "no input can be shared", Reason.NOTHING)
    of_module = c.chance(_OF_MODULE_SHARE)
    fitting = [item for item in owners if item.parameter is of_module]
    if not fitting and of_module:
        like = c.pick(owners)
        b.input("state", like.shape, dtype=like.dtype, buffer=True)
        return b.inputs[-1]
    return c.pick(fitting or owners)
