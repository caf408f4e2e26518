"""Operations that move or view numbers: views, axes, copies, slices."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from generators.errors import require
from generators.program.case import TensorType
from generators.program.ops.rules import (
    along,
    check_holds,
    count_windows,
    distinct_axes,
    given_places,
    one_index,
    permute,
    promote_all,
    put_indices,
    slice_size,
)
from generators.program.ops.spec import Attribute, Kind, Line, Memory, Operands, OpSpec, choose_text, flag, word
from generators.program.sizes import ONE, Size, product, quotient, show
from generators.program.values import COMPLEX, INTEGERS, LOW_PRECISION, category
from generators.reasons import Reason

T = TypeVar("T")


def _view(call: Operands) -> tuple[Size, ...]:
    """The sizes, with -1 replaced by the remaining size. Raises CaseError unless they multiply up to all elements."""
    whole, sizes = product(call.shape), call.attrs["sizes"]
    if any(s.constant == -1 for s in sizes):
        known = product(s for s in sizes if s.constant != -1)
        total, part = whole.value(call.dims), known.value(call.dims)
        fits = [s.constant for s in sizes].count(-1) == 1 and part and total % part == 0
        require(bool(fits), f"{whole} elements can't be laid out as {show(sizes)}")
        sizes = tuple(quotient(whole, known, total // part) if s.constant == -1 else s for s in sizes)
    call.must_equal(whole, product(sizes), f"number of elements of {show(sizes)}")
    return tuple(sizes)


def _unsqueeze(call: Operands) -> tuple[Size, ...]:
    axis = call.axis(extra=1)
    return (*call.shape[:axis], ONE, *call.shape[axis:])


def _squeeze(call: Operands, size: Size) -> tuple[()]:
    call.must_equal(size, ONE, f"axis {call.attrs['dim']}")
    return ()


def _expand(call: Operands) -> tuple[Size, ...]:
    shape = call.shape
    sizes = call.attrs["sizes"] if "sizes" in call.attrs else call.args[1].shape
    require(len(sizes) >= len(shape), f"{show(shape)} can't expand to fewer axes")
    padded = (ONE,) * (len(sizes) - len(shape)) + shape
    targets = tuple(old if new.constant == -1 else new for old, new in zip(padded, sizes, strict=True))
    fits = all(old in (1, new) for old, new in zip(call.numbers(padded), call.numbers(targets), strict=True))
    require(fits, f"{show(shape)} can't expand to {show(sizes)}")
    call.broadcast(padded, targets)
    return targets


def _tile(call: Operands, *, pads: bool = False) -> tuple[Size, ...]:
    shape, times = call.shape, call.attrs["sizes"]
    times = (ONE,) * (len(shape) - len(times)) * pads + times
    require(len(times) >= len(shape), f"takes at least {len(shape)} numbers, got {show(times)}")
    padded = (ONE,) * (len(times) - len(shape)) + shape
    return tuple(size * number for size, number in zip(padded, times, strict=True))


def _repeat(call: Operands, size: Size) -> tuple[Size]:
    return (size * call.attrs["repeats"],)


def _transpose(call: Operands) -> tuple[Size, ...]:
    last_two = (call.attrs["dim0"], call.attrs["dim1"]) == (-2, -1) and len(call.shape) == 2
    require(last_two or call.attrs["form"] == "transpose", "this form exchanges the two axes of a matrix")
    return permute(call)


def _flatten(call: Operands) -> tuple[Size, ...]:
    first, last = call.axis("start_dim"), call.axis("end_dim")
    require(first <= last, f"start_dim {first} comes after end_dim {last}")
    return (*call.shape[:first], product(call.shape[first : last + 1]), *call.shape[last + 1 :])


def _chunk(call: Operands, whole: Size) -> tuple[Size]:
    chunks, index, size = call.attrs["chunks"], call.attrs["index"], whole.value(call.dims)
    require(chunks >= 1 and size % chunks == 0, f"axis of {size} does not split into {chunks} equal chunks")
    require(0 <= index < chunks, f"index {index} of {chunks} chunks", Reason.SPELLING)
    return (quotient(whole, Size.of(chunks), size // chunks),)


def _split(call: Operands, whole: Size) -> tuple[Size]:
    size, sizes, index = call.attrs["size"], call.attrs["sizes"], call.attrs["index"]
    require((size is None) != (sizes is None), "takes the attribute 'size' or 'sizes'", Reason.SPELLING)
    if sizes is not None:
        call.must_equal(whole, sum(sizes, Size.of(0)), "the sum of the sizes")
        require(0 <= index < len(sizes), f"index {index} of {len(sizes)} parts", Reason.SPELLING)
        return (sizes[index],)
    length, part = call.numbers((whole, size))
    require(
        part >= 1 and 0 <= index * part < max(length, 1),
        f"index {index} of parts of {part} of an axis of {length}",
        Reason.SPELLING,
    )
    return (size if (index + 1) * part <= length else whole - size * index,)


def _split_text(line: Line) -> str:
    parts = "{size}" if line.attrs["sizes"] is None else "[{sizes}]"
    return line.fill("{0}.split(" + parts + ", dim={dim})[{index}]")


def _pad(call: Operands) -> tuple[Size, ...]:
    shape, pads = list(call.shape), call.attrs["sizes"]
    fits = len(pads) % 2 == 0 and len(pads) <= 2 * len(shape)
    require(fits, f"{show(pads)} is not a pair for each of at most {len(shape)} axes", Reason.SPELLING)
    mode, rank, axes = call.attrs["mode"], len(shape), len(pads) // 2
    if mode != "constant":
        # A batch may be left out.
        fits = 0 < axes < 4 and (rank - axes == 2 or (rank - axes == 1 and mode != "circular"))
        require(fits, f"mode {mode} takes no {axes} pairs for {rank} axes", Reason.SPELLING)
        fits = (call.args[0].dtype != "bool" or mode == "circular") and not call.attrs["value"]
        require(fits, f"mode {mode} takes no booleans or value")
        lengths = call.numbers(shape)
        most = [{"reflect": length - 1, "circular": length}.get(mode, math.inf if length else 0) for length in lengths]
        fits = all(0 <= pad <= most[-1 - at // 2] for at, pad in enumerate(call.numbers(pads)))
        require(fits, f"mode {mode} can't pad {show(shape)} by {show(pads)}")
    for at in range(0, len(pads), 2):
        shape[-1 - at // 2] += pads[at] + pads[at + 1]
    return tuple(shape)


def _pad_dtype(call: Operands) -> str:
    own, mode = call.args[0].dtype, call.attrs["mode"]
    # Autocast on the CPU leaves out reflections along three axes.
    casts = mode == "replicate" or (mode == "reflect" and len(call.attrs["sizes"]) < 6)
    return "float32" if call.autocast and casts and own in LOW_PRECISION else own


def _pad_text(line: Line) -> str:
    return f"F.pad({', '.join([line.fill('{0}, ({sizes})'), *line.options('mode', 'value')])})"


def _move_along(call: Operands) -> tuple[Size, ...]:
    dims = call.attrs["dims"]
    distinct_axes(call, dims)
    shifts = call.attrs.get("shifts", dims)
    require(len(shifts) == len(dims) > 0, f"takes a shift for each of the axes {list(dims)}")
    return call.shape


def item_text(line: Line, indices: Sequence[str]) -> str:
    """Items of the first argument along consecutive axes."""
    return f"{line.args[0]}[{', '.join([':'] * (line.attrs['dim'] % line.types[0].rank) + [*indices])}]"


def slice_text(line: Line) -> str:
    """A slice of the first argument."""
    axis, rank = line.attrs["dim"], line.types[0].rank
    start = "" if line.attrs["start"] == Size.of(0) else line.attrs["start"]
    step = "" if line.attrs["step"] == 1 else f":{line.attrs['step']}"
    before = "..., " if axis % rank == rank - 1 else ":, " * (axis % rank)
    return f"{line.args[0]}[{before}{start}:{line.attrs['stop']}{step}]"


def _check_alike(call: Operands) -> None:
    first = call.args[0]
    for other in call.args:
        alike = other.rank == first.rank and (other.dtype == first.dtype or bool(call.autocast))
        require(alike, "needs equal ranks and dtypes")
        taken = not call.autocast or category(other.dtype) != 2 or other.dtype in ("float32", call.autocast)
        require(taken, f"autocast to {call.autocast} takes no {other.dtype} here")


def concatenate(call: Operands) -> tuple[Size, ...]:
    """The shape of the arguments in a row along the axis `dim`."""
    first, axis = call.args[0], call.axis()
    _check_alike(call)
    for other in call.args:
        for i, (size, wanted) in enumerate(zip(other.shape, first.shape, strict=True)):
            if i != axis:
                call.must_equal(wanted, size, f"cat: axis {i}")
    total = sum((other.shape[axis] for other in call.args), Size.of(0))
    return (*first.shape[:axis], total, *first.shape[axis + 1 :])


def _stack(call: Operands) -> tuple[Size, ...]:
    axis = call.axis(extra=1)
    _check_alike(call)
    for other in call.args:
        require(other.sizes(call.dims) == call.numbers(call.shape), "needs equal shapes")
    return (*call.shape[:axis], Size.of(len(call.args)), *call.shape[axis:])


def _grid(call: Operands) -> tuple[Size, ...]:
    """The first argument along its axis of a grid, `index`; the others are its other axes, in order."""
    index, first = call.attrs["index"], call.args[0]
    require(0 <= index < len(call.args), f"index {index} of {len(call.args)} axes", Reason.SPELLING)
    require(all(arg.rank == 1 and arg.dtype == first.dtype for arg in call.args), "needs one axis each, and one dtype")
    sizes = [arg.shape[0] for arg in _insert_first(call.args, index)]
    swaps = call.attrs["indexing"] == "xy" and len(sizes) > 1
    return (sizes[1], sizes[0], *sizes[2:]) if swaps else tuple(sizes)


def _insert_first(values: Sequence[T], index: int) -> list[T]:
    first, *others = values
    return [*others[:index], first, *others[index:]]


def _grid_text(line: Line) -> str:
    axes = ", ".join(_insert_first(line.args, line.attrs["index"]))
    return line.fill(f'torch.meshgrid({axes}, indexing="{{indexing}}")[{{index}}]')


def _unfold(call: Operands) -> tuple[Size, ...]:
    """Windows along an axis, in a new last axis."""
    size, step = call.attrs["size"], Size.of(call.attrs["step"])
    return (*along(lambda call, whole: (count_windows(call, whole, size, step),))(call), size)


def _diagonal(call: Operands) -> tuple[Size, ...]:
    """The other axes, then the places that have equal numbers along both axes."""
    first, second = call.axis("dim0"), call.axis("dim1")
    require(first != second, "needs two different axes")
    shorter = min((call.shape[first], call.shape[second]), key=lambda size: size.value(call.dims))
    return (*(size for axis, size in enumerate(call.shape) if axis not in (first, second)), shorter)


_WIDTH = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}


def _view_bytes(call: Operands) -> tuple[Size, ...]:
    """The last axis, with as many elements of the new dtype as its bytes hold."""
    old, new = (_WIDTH[dtype] for dtype in (call.args[0].dtype, call.attrs["dtype"]))
    if old == new:
        return call.shape
    require(len(call.shape) > 0, "another width needs an axis")
    *others, last = call.shape
    length = last.value(call.dims) * old
    require(length % new == 0, f"{length} bytes along the last axis hold no whole {call.attrs['dtype']}")
    return (*others, quotient(last * old, Size.of(new), length // new))


def _as_complex(call: Operands) -> tuple[Size, ...]:
    require(call.args[0].dtype == "float32" and len(call.shape) > 0, "needs float32, and a last axis")
    call.must_equal(call.shape[-1], Size.of(2), "real and imaginary parts")
    return call.shape[:-1]


def _as_real(call: Operands) -> tuple[Size, ...]:
    return (*call.shape, Size.of(2))


def _read_by_strides(call: Operands) -> tuple[Size, ...]:
    """The sizes. `check_memory` checks that the places exist."""
    sizes, strides = call.attrs["sizes"], call.attrs["strides"]
    offset = call.attrs["offset"] or Size.of(0)
    fits = len(sizes) == len(strides) > 0 and min(call.numbers((offset, *strides))) >= 0
    require(fits, "takes a stride for each size, and none below 0")
    return tuple(sizes)


def _spell_read_by_strides(line: Line) -> str:
    offset = "" if line.attrs["offset"] is None else ", {offset}"
    return line.fill(f"{{0}}.as_strided(({{sizes}},), ({{strides}},){offset})")


def _check_places(call: Operands) -> tuple[Size, ...]:
    """The shape of an index that has the axes of the first argument."""
    x, index, *_ = call.args
    axis = call.axis()
    require(index.dtype == "int64" and index.rank == x.rank, "needs an int64 index of as many axes")
    sizes = zip(index.sizes(call.dims), x.sizes(call.dims), strict=True)
    fits = all(i == axis or mine <= whole for i, (mine, whole) in enumerate(sizes))
    require(fits, f"an index of {show(index.shape)} is longer than {show(x.shape)}")
    return index.shape


def _scatter(call: Operands) -> tuple[Size, ...]:
    x, index, *sources = call.args
    _check_places(call)
    value = call.attrs.get("value", 1)
    require(value == 1 or not sources, "takes a tensor or 'value', not both", Reason.SPELLING)
    check_holds(x.dtype, value)
    for source in sources:
        sizes = zip(index.sizes(call.dims), source.sizes(call.dims), strict=False)
        fits = (source.dtype, source.rank) == (x.dtype, x.rank) and all(mine <= whole for mine, whole in sizes)
        require(fits, f"needs a source of dtype {x.dtype} and at least {show(index.shape)}")
    return call.shape


def _scatter_text(line: Line) -> str:
    x, index, *source = line.args
    return f"{x}.{line.kind}({', '.join([line.text('dim'), index, *(source or [line.text('value')])])})"


_SIZE, _SIZES = Attribute(Kind.SIZE, required=True), {"sizes": Attribute(Kind.SIZES, required=True)}
_FIRST, _LAST = Attribute(Kind.AXIS, 0), Attribute(Kind.AXIS, -1)
_INDEX, _STEP = Attribute(Kind.INT, 0), Attribute(Kind.INT, 1)
_CHUNK = {"chunks": Attribute(Kind.INT, required=True), "dim": _LAST, "index": _INDEX}
_TRANSPOSES = {"transpose": "{0}.transpose({dim0}, {dim1})", "t": "{0}.t()", "T": "{0}.T"}
_TRANSPOSE = {"dim0": Attribute(Kind.AXIS, -2), "dim1": _LAST, "form": word(*_TRANSPOSES)}
_AXES = Attribute(Kind.AXES, required=True)
_ROLL = {"shifts": _SIZES["sizes"], "dims": _AXES}
_FLATTEN = {"start_dim": _FIRST, "end_dim": _LAST}
_UNFLATTEN = {"dim": _LAST, **_SIZES}
_SPLIT = {"size": Attribute(Kind.SIZE), "sizes": Attribute(Kind.SIZES), "dim": _LAST, "index": _INDEX}
_PAD = {**_SIZES, "value": Attribute(Kind.NUMBER, 0), "mode": word("constant", "reflect", "replicate", "circular")}
SLICE = {"dim": _LAST, "start": Attribute(Kind.SIZE, Size.of(0)), "stop": _SIZE, "step": _STEP}
SELECT = {"dim": _FIRST, "index": _INDEX}
_SCATTER = {"dim": _LAST, "value": Attribute(Kind.NUMBER, 1)}
_REDUCE = {"dim": _LAST, "reduce": word("sum", "prod", "mean", "amax", "amin"), "include_self": flag(True)}
_REDUCE_TEXT = '{0}.scatter_reduce({dim}, {1}, {2}, reduce="{reduce}", include_self={include_self})'
_GRID = {"index": _INDEX, "indexing": word("ij", "xy")}
_STRIDED = {**_SIZES, "strides": _SIZES["sizes"], "offset": Attribute(Kind.SIZE)}
_DIAGONAL = {"dim0": _FIRST, "dim1": Attribute(Kind.AXIS, 1)}
_UNFOLD = {"dim": _FIRST, "size": _SIZE, "step": _STEP}
_CAT, _PART_OF_CHUNKS = "torch.cat([{args}], dim={dim})", "{0}.chunk({chunks}, dim={dim})[{index}]"
_STACK, _INDEX_SELECT = "torch.stack([{args}], dim={dim})", "{0}.index_select({dim}, {1})"
_PART_OF_ALL = "{0}.unbind({dim})[{index}]"
_CLONES = {"preserve": "{0}.clone()", "contiguous": "{0}.clone(memory_format=torch.contiguous_format)"}
_CLONE = {"memory_format": word(*_CLONES)}

_MOST = 64
"""The most tensors that are joined."""
_VIEW, _CROWDED_VIEW = Memory.VIEW, Memory.CROWDED_VIEW

OPS = [
    OpSpec("view", _view, attributes=_SIZES, memory=_VIEW),
    OpSpec("reshape", _view, attributes=_SIZES, memory=Memory.VIEW_OR_COPY),
    OpSpec("flatten", _flatten, attributes=_FLATTEN, memory=Memory.VIEW_OR_COPY, cost=2),
    OpSpec(
        "unflatten",
        along(lambda call, size: _view(replace(call, args=(TensorType((size,), call.args[0].dtype),)))),
        text="{0}.unflatten({dim}, ({sizes},))",
        attributes=_UNFLATTEN,
        memory=_VIEW,
        cost=2,
    ),
    OpSpec("permute", permute, attributes={"dims": _AXES}, memory=_VIEW),
    OpSpec("transpose", _transpose, text=choose_text("form", _TRANSPOSES), attributes=_TRANSPOSE, memory=_VIEW),
    OpSpec("mT", permute, text="{0}.mT", memory=_VIEW, cost=2),
    OpSpec("unsqueeze", _unsqueeze, attributes={"dim": _FIRST}, memory=_VIEW),
    OpSpec("squeeze", along(_squeeze), attributes={"dim": _FIRST}, memory=_VIEW),
    OpSpec("expand", _expand, attributes=_SIZES, memory=_CROWDED_VIEW),
    OpSpec("expand_as", _expand, text="{0}.expand_as({1})", memory=_CROWDED_VIEW, arity=(2, 2), cost=2),
    OpSpec("repeat", _tile, attributes=_SIZES, saves=False),
    OpSpec("tile", partial(_tile, pads=True), attributes=_SIZES, saves=False),
    OpSpec("repeat_interleave", along(_repeat), attributes={"repeats": _SIZE, "dim": _FIRST}),
    OpSpec("chunk", along(_chunk), text=_PART_OF_CHUNKS, attributes=_CHUNK, memory=Memory.PART_VIEW),
    OpSpec("split", along(_split), text=_split_text, attributes=_SPLIT, memory=Memory.PART_VIEW, cost=2),
    OpSpec("unbind", along(one_index), text=_PART_OF_ALL, attributes=SELECT, memory=Memory.PART_VIEW, cost=2),
    OpSpec("select", along(one_index), attributes=SELECT, memory=_VIEW),
    OpSpec("narrow", along(slice_size), text=slice_text, attributes=SLICE, memory=_VIEW),
    OpSpec("meshgrid", _grid, text=_grid_text, attributes=_GRID, memory=_CROWDED_VIEW, arity=(1, 6), cost=2),
    OpSpec("unfold", _unfold, attributes=_UNFOLD, memory=_CROWDED_VIEW, cost=2),
    OpSpec("as_strided", _read_by_strides, text=_spell_read_by_strides, attributes=_STRIDED, memory=_CROWDED_VIEW),
    OpSpec("diagonal", _diagonal, attributes=_DIAGONAL, text="{0}.diagonal(0, {dim0}, {dim1})", memory=_VIEW),
    OpSpec(
        "view_dtype",
        _view_bytes,
        lambda call: str(call.attrs["dtype"]),
        "integral",
        "{0}.view(torch.{dtype})",
        {"dtype": Attribute(Kind.WORD, None, INTEGERS, required=True)},
        memory=_VIEW,
    ),
    OpSpec("view_as_complex", _as_complex, COMPLEX, "float", "torch.view_as_complex({0})", memory=_VIEW),
    OpSpec("view_as_real", _as_real, "float32", "complex", "torch.view_as_real({0})", memory=_VIEW),
    OpSpec("scatter", _scatter, text=_scatter_text, attributes=_SCATTER, arity=(2, 3), cost=2),
    OpSpec("scatter_add", _scatter, text=_scatter_text, attributes={"dim": _LAST}, arity=(3, 3), cost=2),
    OpSpec("scatter_reduce", _scatter, text=_REDUCE_TEXT, attributes=_REDUCE, arity=(3, 3), cost=3),
    OpSpec("gather", _check_places, text="{0}.gather({dim}, {1})", attributes={"dim": _LAST}, arity=(2, 2)),
    OpSpec("index_select", along(given_places), text=_INDEX_SELECT, attributes={"dim": _FIRST}, arity=(2, 2), cost=2),
    OpSpec(
        "index",
        lambda call: put_indices(call, call.args[1:]),
        text=lambda line: item_text(line, line.args[1:]),
        attributes={"dim": _FIRST},
        arity=(2, 5),
    ),
    OpSpec("cat", concatenate, promote_all, "all", _CAT, {"dim": _LAST}, arity=(1, _MOST), saves=False),
    OpSpec("stack", _stack, promote_all, "all", _STACK, {"dim": _FIRST}, arity=(1, _MOST), saves=False),
    OpSpec("pad", _pad, _pad_dtype, text=_pad_text, attributes=_PAD, saves=False),
    OpSpec("flip", _move_along, text="{0}.flip({dims})", attributes={"dims": _AXES}, saves=False),
    OpSpec("roll", _move_along, text="torch.roll({0}, ({shifts},), ({dims},))", attributes=_ROLL, saves=False),
    OpSpec("contiguous", memory=Memory.VIEW_OR_COPY),
    OpSpec("clone", text=choose_text("memory_format", _CLONES), attributes=_CLONE, memory=Memory.COPY, saves=False),
    OpSpec("to_own_dtype", text="{0}.to({0}.dtype)", memory=_VIEW),
    OpSpec("detach", memory=_VIEW),
]
