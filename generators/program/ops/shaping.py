"""Operations that move data or look at it another way: views, axes, copies, slices."""

from functools import partial

from generators.errors import CaseError, require
from generators.program.case import TensorType
from generators.program.dtypes import category, promote
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, forms, method, must_equal, same, show
from generators.program.sizes import Size, product


def _view(call: Call) -> TensorType:
    """The sizes with a -1 replaced by what is left. Raises CaseError unless they multiply up to all elements."""
    whole, sizes = product(call.shape), call.attrs["sizes"]
    if any(s.constant == -1 for s in sizes):
        known = product(s for s in sizes if s.constant != -1)
        total, part = whole.value(call.dims), known.value(call.dims)
        if [s.constant for s in sizes].count(-1) > 1 or part == 0 or total % part:
            raise CaseError(f"{whole} elements can't be laid out as {show(sizes)}")
        sizes = tuple(quotient(whole, known, total // part) if s.constant == -1 else s for s in sizes)
    must_equal(whole, product(sizes), call.dims, f"number of elements of {show(sizes)}")
    require(all(s.value(call.dims) >= 0 for s in sizes), f"{show(sizes)} has a negative size")
    return call.reshape(*sizes)


def quotient(whole: Size, part: Size, value: int) -> Size:
    """`whole / part` as a size when both are single products that divide; else the bare number."""
    if len(whole.terms) == len(part.terms) == 1:
        (names, a), (divisor, b) = whole.terms[0], part.terms[0]
        left = list(names)
        for name in divisor:
            if name not in left:
                return Size.of(value)
            left.remove(name)
        if a % b == 0:
            return Size(((tuple(left), a // b),))
    return Size.of(value)


def _permute(call: Call) -> TensorType:
    axes, rank = call.attrs["dims"], len(call.shape)
    if sorted(a % rank if -rank <= a < rank else 99 for a in axes) != list(range(rank)):
        raise CaseError(f"dims {list(axes)} are not a permutation of {rank} axes")
    return call.reshape(*(call.shape[a] for a in axes))


def _transpose(call: Call) -> TensorType:
    a, b = call.axis("dim0"), call.axis("dim1")
    shape = list(call.shape)
    shape[a], shape[b] = shape[b], shape[a]
    return call.reshape(*shape)


def _transpose_matrix(call: Call) -> TensorType:
    require(len(call.shape) >= 2, "needs at least two axes")
    return call.reshape(*call.shape[:-2], call.shape[-1], call.shape[-2])


def _replace_axis(call: Call, axis: int, *sizes: Size) -> TensorType:
    return call.reshape(*call.shape[:axis], *sizes, *call.shape[axis + 1 :])


def _unsqueeze(call: Call) -> TensorType:
    axis = call.axis(extra=1)
    return call.reshape(*call.shape[:axis], Size.of(1), *call.shape[axis:])


def _squeeze(call: Call) -> TensorType:
    axis = call.axis()
    require(call.shape[axis].value(call.dims) == 1, f"axis {axis} of {show(call.shape)} is not 1")
    return _replace_axis(call, axis)


def _expand(call: Call, sizes: tuple[Size, ...] | None = None) -> TensorType:
    shape, sizes = call.shape, call.attrs["sizes"] if sizes is None else sizes
    require(len(sizes) >= len(shape), f"{show(shape)} can't expand to fewer axes")
    padded = (Size.of(1),) * (len(sizes) - len(shape)) + shape
    targets = [old if new.constant == -1 else new for old, new in zip(padded, sizes, strict=True)]
    for old, target in zip(padded, targets, strict=True):
        if old.value(call.dims) not in (1, target.value(call.dims)):
            raise CaseError(f"{show(shape)} can't expand to {show(sizes)}")
    return call.reshape(*targets)


def _repeat_interleave(call: Call) -> TensorType:
    axis = call.axis()
    return _replace_axis(call, axis, call.shape[axis] * call.attrs["repeats"])


def _chunk(call: Call) -> TensorType:
    axis, chunks, index = call.axis(), call.attrs["chunks"], call.attrs["index"]
    size = call.shape[axis].value(call.dims)
    require(chunks >= 1 and size % chunks == 0, f"axis of {size} does not split into {chunks} equal chunks")
    require(0 <= index < chunks, f"index {index} of {chunks} chunks")
    return _replace_axis(call, axis, quotient(call.shape[axis], Size.of(chunks), size // chunks))


def select(call: Call) -> TensorType:
    """The type of the part at one index."""
    axis, index = call.axis(), call.attrs["index"]
    if not 0 <= index < call.shape[axis].value(call.dims):
        raise CaseError(f"index {index} is outside axis {axis} of {show(call.shape)}")
    return _replace_axis(call, axis)


def narrow(call: Call) -> TensorType:
    """The type of a slice."""
    axis, start, stop, step = call.axis(), call.value("start"), call.value("stop"), call.attrs["step"]
    if not 0 <= start <= stop <= call.shape[axis].value(call.dims):
        raise CaseError(f"slice {start}:{stop} is outside axis {axis} of {show(call.shape)}")
    require(step >= 1, f"step {step} is not positive")
    size = call.attrs["stop"] - call.attrs["start"]
    if step > 1:
        count = -(-(stop - start) // step)
        size = quotient(call.attrs["stop"], Size.of(step), count)
        size = size if size.value(call.dims) == count else Size.of(count)
    return _replace_axis(call, axis, size)


def narrow_text(line: Line) -> str:
    """A slice of the first argument."""
    axis, rank = line.attrs["dim"], line.types[0].rank
    start = "" if line.attrs["start"] == Size.of(0) else line.attrs["start"]
    step = "" if line.attrs["step"] == 1 else f":{line.attrs['step']}"
    before = "..., " if axis % rank == rank - 1 else ":, " * (axis % rank)
    return f"{line.args[0]}[{before}{start}:{line.attrs['stop']}{step}]"


def _cat(call: Call) -> TensorType:
    first, axis = call.args[0], call.axis()
    total = Size.of(0)
    for other in call.args:
        if other.rank != first.rank or (other.dtype != first.dtype and not call.autocast):
            raise CaseError("cat needs equal ranks and dtypes")
        if call.autocast and category(other.dtype) == 2 and other.dtype not in ("float32", call.autocast):
            raise CaseError(f"autocast to {call.autocast} takes no {other.dtype} in cat")
        for i in range(first.rank):
            if i != axis:
                must_equal(first.shape[i], other.shape[i], call.dims, f"cat: axis {i}")
        total = total + other.shape[axis]
    dtype = promote([(other.dtype, other.rank) for other in call.args])
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), dtype)


def _unfold(call: Call) -> TensorType:
    axis, size, step = call.axis(), call.attrs["size"], call.attrs["step"]
    length, width = call.shape[axis].value(call.dims), call.value("size")
    if step < 1 or not 0 < width <= length:
        raise CaseError(f"windows of {width} at steps of {step} do not fit into an axis of {length}")
    count = call.shape[axis] - size + 1 if step == 1 else Size.of((length - width) // step + 1)
    return call.reshape(*call.shape[:axis], count, *call.shape[axis + 1 :], size)


def _scatter(call: Call) -> TensorType:
    x, index = call.args
    axis = call.axis()
    require(index.dtype == "int64" and index.rank == x.rank, "needs an int64 index of as many axes")
    sizes = zip(index.sizes(call.dims), x.sizes(call.dims), strict=True)
    fits = all(i == axis or mine <= whole for i, (mine, whole) in enumerate(sizes))
    require(fits, f"an index of {show(index.shape)} is longer than {show(x.shape)}")
    require(isinstance(call.attrs["value"], int) or category(call.args[0].dtype) == 2, "integers can't hold a float")
    return call.args[0]


_SIZE, _SIZES = Attribute(Kind.SIZE, required=True), Attribute(Kind.SIZES, required=True)
_FIRST, _LAST = Attribute(Kind.AXIS, 0), Attribute(Kind.AXIS, -1)
_NONE = Attribute(Kind.SIZE, Size.of(0))
_PLACE, _STEP = Attribute(Kind.INT, 0), Attribute(Kind.INT, 1)
_CHUNK = {"chunks": Attribute(Kind.INT, required=True), "dim": _LAST, "index": _PLACE}
_SLICE = {"dim": _LAST, "start": _NONE, "stop": _SIZE, "step": _STEP}
_SCATTER = {"dim": _LAST, "value": Attribute(Kind.NUMBER, 1)}
_CLONES = {"preserve": "{0}.clone()", "contiguous": "{0}.clone(memory_format=torch.contiguous_format)"}

_view_method = partial(method, owns_memory=False)
_view_spec = partial(OpSpec, owns_memory=False)

OPS = [
    _view_method("view", _view, {"sizes": _SIZES}),
    _view_method("reshape", _view, {"sizes": _SIZES}),
    _view_method("permute", _permute, {"dims": Attribute(Kind.AXES, required=True)}),
    _view_method("transpose", _transpose, {"dim0": Attribute(Kind.AXIS, -2), "dim1": _LAST}),
    _view_spec("mT", (1, 1), _transpose_matrix, "{0}.mT", cost=2),
    _view_method("unsqueeze", _unsqueeze, {"dim": _FIRST}),
    _view_method("squeeze", _squeeze, {"dim": _FIRST}),
    _view_method("expand", _expand, {"sizes": _SIZES}),
    _view_spec("expand_as", (2, 2), lambda call: _expand(call, call.args[1].shape), "{0}.expand_as({1})", cost=2),
    method("repeat_interleave", _repeat_interleave, {"repeats": _SIZE, "dim": _FIRST}),
    _view_spec("chunk", (1, 1), _chunk, "{0}.chunk({chunks}, dim={dim})[{index}]", _CHUNK),
    _view_spec("unbind", (1, 1), select, "{0}.unbind({dim})[{index}]", {"dim": _FIRST, "index": _PLACE}, cost=2),
    _view_method("select", select, {"dim": _FIRST, "index": _PLACE}),
    _view_spec("narrow", (1, 1), narrow, narrow_text, _SLICE),
    _view_method("unfold", _unfold, {"dim": _FIRST, "size": _SIZE, "step": _STEP}, cost=2),
    OpSpec("scatter", (2, 2), _scatter, "{0}.scatter({dim}, {1}, {value})", _SCATTER, cost=2),
    OpSpec("cat", (2, 4), _cat, "torch.cat([{args}], dim={dim})", {"dim": _LAST}),
    _view_method("contiguous", same),
    forms("clone", (1, 1), same, "memory_format", _CLONES),
    _view_spec("to_own_dtype", (1, 1), same, "{0}.to({0}.dtype)"),
    _view_method("detach", same),
]
VIEWS = frozenset(spec.kind for spec in OPS if not spec.owns_memory) | {"clone"}
"""The operations that change no number: views and copies."""
