"""Adds arguments that share memory, with each other or the module, and writes through views that few write through."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from generators.errors import require
from generators.program.case import Case, Input, LaterCall, SharedSlice, Values, free_name
from generators.program.sizes import Size
from generators.program.writes import FILLS
from generators.reasons import Reason
from generators.sampling.builder import Builder, draw_valid
from generators.sampling.choices import Choices
from generators.sampling.writes import draw_slice, draw_view, draw_write

_TRIES = 8
_COPIED_SHARE = 0.25  # the share of shared arguments that are apart in the first call
_APART_SHARE = 0.15  # the share of uncopied shared arguments that are apart in a later call
_OF_MODULE_SHARE = 0.4  # the share of shared arguments that are parts of a parameter or a buffer, where there are any
_VIEWED_SHARE = 0.25  # the share of results that are views: view-of-shared-arguments hides other faults of these
_WHOLE_SHARE = 0.2  # the share of shared arguments that are one tensor, passed twice


def add_memory(case: Case, c: Choices, share: float) -> Case:
    """For this share of cases, the case with arguments that share memory, or with a write through an odd view."""
    if not c.chance(share):
        return case
    return share_arguments(case, c) if c.chance(0.5) else write_through_views(case, c)


def share_arguments(case: Case, c: Choices) -> Case:
    """The case with an argument that is a part of another input, and a write into one. Unchanged if none fits."""
    return draw_valid(case, partial(_share, c=c), _TRIES)


def write_through_views(case: Case, c: Choices) -> Case:
    """The case with a write through a view whose elements are spread, apart or bytes. Unchanged if none fits."""
    return draw_valid(case, partial(_write_through_view, c=c), _TRIES)


def _share(case: Case, c: Choices) -> Case:
    require(
        not case.regions and case.autocast is None,
        "regions and autocast are drawn without shared memory",
        Reason.NOTHING,
    )
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


def _write_through_view(case: Case, c: Choices) -> Case:
    require(not case.regions, "regions are drawn without odd views", Reason.NOTHING)
    place = c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    view = c.draw(_VIEWS)
    if view is _write_bytes:
        owner = b.input("bits", (2, 2 * (1 + c.below(3))), Values("signed"), c.pick(("int32", "int64")))
    else:
        floats = b.list_floats(parameters=True)
        require(bool(floats), "there is nothing to write into", Reason.NOTHING)
        owner = c.pick(floats)
    how = c.draw({"clone": 5.0, "argument": 2.0, "buffer": 2.0})
    if how == "buffer" and view is not _write_bytes:
        owner = b.input("state", b.shape(owner), dtype=b.dtype_of(owner), buffer=True)
    elif how == "clone":
        owner = b.op("clone", owner, to="base")
    view(b, c, owner)
    read = b.op("neg", owner, to="read") if c.chance(0.5) else owner
    return b.close(replace(case, contracts=()), (*case.returns, read), case.ops[place:])


def _fill_expanded(b: Builder, c: Choices, owner: str) -> None:
    """One number through a view with a new axis along which all elements have one place."""
    shape = b.shape(owner)
    rows = b.op("expand", owner, to="rows", sizes=(Size.of(2 + c.below(3)), *shape))
    kind = c.pick(FILLS)
    options: dict[str, Any] = {"value": c.pick((0.5, -1.0, 2.0))} if kind == "fill_" else {}
    b.op(kind, rows, **options)


def _write_windows(b: Builder, c: Choices, owner: str) -> None:
    axis = c.below(b.rank(owner))
    length = b.size(b.shape(owner)[axis])
    require(length > 0, "an axis without elements has no windows", Reason.NOTHING)
    size = 1 + c.below(min(3, length))
    view = b.op("unfold", owner, to="windows", dim=axis, size=Size.of(size), step=size + c.below(3))
    draw_write(b, c, view, [])


def _write_diagonal(b: Builder, c: Choices, owner: str) -> None:
    require(b.rank(owner) > 1, "a diagonal needs two axes", Reason.NOTHING)
    first = c.below(b.rank(owner))
    second = (first + 1 + c.below(b.rank(owner) - 1)) % b.rank(owner)
    draw_write(b, c, b.op("diagonal", owner, to="diagonal", dim0=first, dim1=second), [])


def _write_part(b: Builder, c: Choices, owner: str) -> None:
    axis = c.below(b.rank(owner))
    index = c.below(max(1, b.size(b.shape(owner)[axis])))
    draw_write(b, c, b.op("unbind", owner, to="row", dim=axis, index=index), [])


def _write_bytes(b: Builder, c: Choices, owner: str) -> None:
    view = b.op("view_dtype", owner, to="bytes", dtype=c.pick(("uint8", "int32", "int64")))
    view = draw_view(b, c, view) if c.chance(0.4) else view
    kind = c.pick(("add_", "mul_", "zero_"))
    options: dict[str, Any] = {} if kind == "zero_" else {"other": 3}
    b.op(kind, view, **options)


_VIEWS: dict[Callable[[Builder, Choices, str], None], float] = {
    _fill_expanded: 2.0,
    _write_windows: 3.0,
    _write_diagonal: 2.0,
    _write_part: 1.0,
    _write_bytes: 2.0,
}
