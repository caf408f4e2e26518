"""Operations that move or view numbers: views, axes, copies, slices."""

from generators.errors import require
from generators.program.ops.rules import along, one_index, permute, promote_all, slice_size
from generators.program.ops.spec import Attribute, Kind, Line, Memory, Operands, OpSpec, choose_text, word
from generators.program.sizes import ONE, Size, product, quotient, show
from generators.program.values import category


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
    return targets


def _repeat(call: Operands, size: Size) -> tuple[Size]:
    return (size * call.attrs["repeats"],)


def _chunk(call: Operands, whole: Size) -> tuple[Size]:
    chunks, index, size = call.attrs["chunks"], call.attrs["index"], whole.value(call.dims)
    require(chunks >= 1 and size % chunks == 0, f"axis of {size} does not split into {chunks} equal chunks")
    require(0 <= index < chunks, f"index {index} of {chunks} chunks")
    return (quotient(whole, Size.of(chunks), size // chunks),)


def slice_text(line: Line) -> str:
    """A slice of the first argument."""
    axis, rank = line.attrs["dim"], line.types[0].rank
    start = "" if line.attrs["start"] == Size.of(0) else line.attrs["start"]
    step = "" if line.attrs["step"] == 1 else f":{line.attrs['step']}"
    before = "..., " if axis % rank == rank - 1 else ":, " * (axis % rank)
    return f"{line.args[0]}[{before}{start}:{line.attrs['stop']}{step}]"


def _concatenate(call: Operands) -> tuple[Size, ...]:
    first, axis = call.args[0], call.axis()
    for other in call.args:
        alike = other.rank == first.rank and (other.dtype == first.dtype or bool(call.autocast))
        require(alike, "cat needs equal ranks and dtypes")
        taken = not call.autocast or category(other.dtype) != 2 or other.dtype in ("float32", call.autocast)
        require(taken, f"autocast to {call.autocast} takes no {other.dtype} in cat")
        for i, (size, wanted) in enumerate(zip(other.shape, first.shape, strict=True)):
            if i != axis:
                call.must_equal(wanted, size, f"cat: axis {i}")
    total = sum((other.shape[axis] for other in call.args), Size.of(0))
    return (*first.shape[:axis], total, *first.shape[axis + 1 :])


def _unfold(call: Operands) -> tuple[Size, ...]:
    """Windows along an axis, in a new last axis."""
    step, size, width = call.attrs["step"], call.attrs["size"], call.value("size")

    def count(call: Operands, whole: Size) -> tuple[Size]:
        length = whole.value(call.dims)
        fits = step >= 1 and 0 < width <= length
        require(fits, f"windows of {width} at steps of {step} do not fit into an axis of {length}")
        return (whole - size + 1 if step == 1 else Size.of((length - width) // step + 1),)

    return (*along(count)(call), size)


def _scatter(call: Operands) -> tuple[Size, ...]:
    x, index = call.args
    axis = call.axis()
    require(index.dtype == "int64" and index.rank == x.rank, "needs an int64 index of as many axes")
    sizes = zip(index.sizes(call.dims), x.sizes(call.dims), strict=True)
    fits = all(i == axis or mine <= whole for i, (mine, whole) in enumerate(sizes))
    require(fits, f"an index of {show(index.shape)} is longer than {show(x.shape)}")
    require(isinstance(call.attrs["value"], int) or category(x.dtype) == 2, "integers can't hold a float")
    return x.shape


_SIZE, _SIZES = Attribute(Kind.SIZE, required=True), {"sizes": Attribute(Kind.SIZES, required=True)}
_FIRST, _LAST = Attribute(Kind.AXIS, 0), Attribute(Kind.AXIS, -1)
_INDEX, _STEP = Attribute(Kind.INT, 0), Attribute(Kind.INT, 1)
_CHUNK = {"chunks": Attribute(Kind.INT, required=True), "dim": _LAST, "index": _INDEX}
SLICE = {"dim": _LAST, "start": Attribute(Kind.SIZE, Size.of(0)), "stop": _SIZE, "step": _STEP}
SELECT = {"dim": _FIRST, "index": _INDEX}
_SCATTER = {"dim": _LAST, "value": Attribute(Kind.NUMBER, 1)}
_UNFOLD = {"dim": _FIRST, "size": _SIZE, "step": _STEP}
_CAT, _PART_OF_CHUNKS = "torch.cat([{args}], dim={dim})", "{0}.chunk({chunks}, dim={dim})[{index}]"
_PART_OF_ALL = "{0}.unbind({dim})[{index}]"
_CLONES = {"preserve": "{0}.clone()", "contiguous": "{0}.clone(memory_format=torch.contiguous_format)"}
_CLONE = {"memory_format": word(*_CLONES)}

_VIEW, _CROWDED_VIEW = Memory.VIEW, Memory.CROWDED_VIEW

OPS = [
    OpSpec("view", _view, attributes=_SIZES, memory=_VIEW),
    OpSpec("reshape", _view, attributes=_SIZES, memory=Memory.VIEW_OR_COPY),
    OpSpec("permute", permute, attributes={"dims": Attribute(Kind.AXES, required=True)}, memory=_VIEW),
    OpSpec("transpose", permute, attributes={"dim0": Attribute(Kind.AXIS, -2), "dim1": _LAST}, memory=_VIEW),
    OpSpec("mT", permute, text="{0}.mT", memory=_VIEW, cost=2),
    OpSpec("unsqueeze", _unsqueeze, attributes={"dim": _FIRST}, memory=_VIEW),
    OpSpec("squeeze", along(_squeeze), attributes={"dim": _FIRST}, memory=_VIEW),
    OpSpec("expand", _expand, attributes=_SIZES, memory=_CROWDED_VIEW),
    OpSpec("expand_as", _expand, text="{0}.expand_as({1})", memory=_CROWDED_VIEW, arity=(2, 2), cost=2),
    OpSpec("repeat_interleave", along(_repeat), attributes={"repeats": _SIZE, "dim": _FIRST}),
    OpSpec("chunk", along(_chunk), text=_PART_OF_CHUNKS, attributes=_CHUNK, memory=_CROWDED_VIEW),
    OpSpec("unbind", along(one_index), text=_PART_OF_ALL, attributes=SELECT, memory=_CROWDED_VIEW, cost=2),
    OpSpec("select", along(one_index), attributes=SELECT, memory=_VIEW),
    OpSpec("narrow", along(slice_size), text=slice_text, attributes=SLICE, memory=_VIEW),
    OpSpec("unfold", _unfold, attributes=_UNFOLD, memory=_CROWDED_VIEW, cost=2),
    OpSpec("scatter", _scatter, text="{0}.scatter({dim}, {1}, {value})", attributes=_SCATTER, arity=(2, 2), cost=2),
    OpSpec("cat", _concatenate, promote_all, text=_CAT, attributes={"dim": _LAST}, arity=(2, 4), saves=False),
    OpSpec("contiguous", memory=Memory.VIEW_OR_COPY),
    OpSpec("clone", text=choose_text("memory_format", _CLONES), attributes=_CLONE, memory=Memory.COPY, saves=False),
    OpSpec("to_own_dtype", text="{0}.to({0}.dtype)", memory=_VIEW),
    OpSpec("detach", memory=_VIEW),
]
