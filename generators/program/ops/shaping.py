"""Operations that move data or look at it another way: views, axes, copies, slices."""

from generators.errors import CaseError
from generators.program.case import TensorType
from generators.program.dtypes import category, promote
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, method, must_equal, same, show, word
from generators.program.sizes import Size, product

DIM = Attribute(Kind.AXIS, -1)


def _view(call: Call) -> TensorType:
    old, sizes = product(call.args[0].shape), call.sizes("sizes")
    return TensorType(_filled_in(old, sizes, call), call.args[0].dtype)


def _filled_in(whole: Size, sizes: tuple[Size, ...], call: Call) -> tuple[Size, ...]:
    """`sizes` with a -1 replaced by what is left of `whole`. Raises CaseError unless they multiply up to it."""
    if any(s.constant == -1 for s in sizes):
        known = product(s for s in sizes if s.constant != -1)
        total, part = whole.value(call.dims), known.value(call.dims)
        if [s.constant for s in sizes].count(-1) > 1 or part == 0 or total % part:
            raise CaseError(f"{whole} elements can't be laid out as {show(sizes)}")
        sizes = tuple(quotient(whole, known, total // part) if s.constant == -1 else s for s in sizes)
    must_equal(whole, product(sizes), call.dims, f"number of elements of {show(sizes)}")
    if any(s.value(call.dims) < 0 for s in sizes):
        raise CaseError(f"{show(sizes)} has a negative size")
    return sizes


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
    shape, axes = call.args[0].shape, call.axes("dims")
    if sorted(a % len(shape) if -len(shape) <= a < len(shape) else 99 for a in axes) != list(range(len(shape))):
        raise CaseError(f"dims {list(axes)} are not a permutation of {len(shape)} axes")
    return TensorType(tuple(shape[a] for a in axes), call.args[0].dtype)


def _transpose(call: Call) -> TensorType:
    a, b = call.axis("dim0"), call.axis("dim1")
    shape = list(call.args[0].shape)
    shape[a], shape[b] = shape[b], shape[a]
    return TensorType(tuple(shape), call.args[0].dtype)


def _mt(call: Call) -> TensorType:
    shape = call.args[0].shape
    if len(shape) < 2:
        raise CaseError("needs at least two axes")
    return TensorType((*shape[:-2], shape[-1], shape[-2]), call.args[0].dtype)


def _unsqueeze(call: Call) -> TensorType:
    shape, axis = call.args[0].shape, call.axis(extra=1)
    return TensorType((*shape[:axis], Size.of(1), *shape[axis:]), call.args[0].dtype)


def _squeeze(call: Call) -> TensorType:
    shape, axis = call.args[0].shape, call.axis()
    if shape[axis].value(call.dims) != 1:
        raise CaseError(f"axis {axis} of {show(shape)} is not 1")
    return TensorType((*shape[:axis], *shape[axis + 1 :]), call.args[0].dtype)


def _unflatten(call: Call) -> TensorType:
    shape, axis = call.args[0].shape, call.axis()
    sizes = _filled_in(shape[axis], call.sizes("sizes"), call)
    return TensorType((*shape[:axis], *sizes, *shape[axis + 1 :]), call.args[0].dtype)


def _flatten(call: Call) -> TensorType:
    shape, start, end = call.args[0].shape, call.axis("start"), call.axis("end")
    if start > end:
        raise CaseError("start lies behind end")
    return TensorType((*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :]), call.args[0].dtype)


def _expand(call: Call) -> TensorType:
    shape, sizes = call.args[0].shape, call.sizes("sizes")
    if len(sizes) < len(shape):
        raise CaseError(f"{show(shape)} can't expand to fewer axes")
    padded = (Size.of(1),) * (len(sizes) - len(shape)) + shape
    result = []
    for old, new in zip(padded, sizes, strict=True):
        target = old if new.constant == -1 else new
        if old.value(call.dims) not in (1, target.value(call.dims)):
            raise CaseError(f"{show(shape)} can't expand to {show(sizes)}")
        result.append(target)
    return TensorType(tuple(result), call.args[0].dtype)


def _repeat_interleave(call: Call) -> TensorType:
    axis, shape = call.axis(), list(call.args[0].shape)
    shape[axis] = shape[axis] * call.size("repeats")
    return TensorType(tuple(shape), call.args[0].dtype)


def _repeat(call: Call) -> TensorType:
    shape, sizes = call.args[0].shape, call.sizes("sizes")
    if len(sizes) != len(shape):
        raise CaseError(f"repeat needs {len(shape)} sizes")
    return TensorType(tuple(a * b for a, b in zip(shape, sizes, strict=True)), call.args[0].dtype)


def _chunk(call: Call) -> TensorType:
    axis, chunks, shape = call.axis(), call.number("chunks"), list(call.args[0].shape)
    size = shape[axis].value(call.dims)
    if chunks < 1 or size % chunks:
        raise CaseError(f"axis of {size} does not split into {chunks} equal chunks")
    if not 0 <= call.number("index") < chunks:
        raise CaseError(f"index {call.number('index')} of {chunks} chunks")
    shape[axis] = quotient(shape[axis], Size.of(chunks), size // chunks)
    return TensorType(tuple(shape), call.args[0].dtype)


def _select(call: Call) -> TensorType:
    axis, shape, index = call.axis(), call.args[0].shape, call.number("index")
    if not 0 <= index < shape[axis].value(call.dims):
        raise CaseError(f"index {index} is outside axis {axis} of {show(shape)}")
    return TensorType((*shape[:axis], *shape[axis + 1 :]), call.args[0].dtype)


def _narrow(call: Call) -> TensorType:
    axis, shape = call.axis(), list(call.args[0].shape)
    start, stop = call.size("start").value(call.dims), call.size("stop").value(call.dims)
    if not 0 <= start <= stop <= shape[axis].value(call.dims):
        raise CaseError(f"slice {start}:{stop} is outside axis {axis} of {show(shape)}")
    shape[axis] = call.size("stop") - call.size("start")
    step = call.number("step")
    if step < 1:
        raise CaseError(f"step {step} is not positive")
    if step > 1:
        count = -(-(stop - start) // step)
        found = quotient(call.size("stop"), Size.of(step), count)
        shape[axis] = found if found.value(call.dims) == count else Size.of(count)
    return TensorType(tuple(shape), call.args[0].dtype)


def _narrow_text(line: Line) -> str:
    axis, rank = line.attrs["dim"], line.types[0].rank
    assert isinstance(axis, int)
    start = "" if line.attrs["start"] == Size.of(0) else str(line.attrs["start"])
    step = "" if line.attrs["step"] == 1 else f":{line.attrs['step']}"
    cut = f"{start}:{line.attrs['stop']}{step}"
    if axis % rank == rank - 1:
        return f"{line.args[0]}[..., {cut}]"
    return f"{line.args[0]}[{':, ' * (axis % rank)}{cut}]"


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


def _stack(call: Call) -> TensorType:
    first, axis = call.args[0], call.axis(extra=1)
    for other in call.args:
        if other.rank != first.rank or other.dtype != first.dtype:
            raise CaseError("stack needs equal ranks and dtypes")
        for i in range(first.rank):
            must_equal(first.shape[i], other.shape[i], call.dims, f"stack: axis {i}")
    return TensorType((*first.shape[:axis], Size.of(len(call.args)), *first.shape[axis:]), first.dtype)


def _unfold(call: Call) -> TensorType:
    axis, size, step, shape = call.axis(), call.size("size"), call.number("step"), list(call.args[0].shape)
    length, width = shape[axis].value(call.dims), size.value(call.dims)
    if step < 1 or not 0 < width <= length:
        raise CaseError(f"windows of {width} at steps of {step} do not fit into an axis of {length}")
    shape[axis] = shape[axis] - size + 1 if step == 1 else Size.of((length - width) // step + 1)
    return TensorType((*shape, size), call.args[0].dtype)


def _index(call: Call) -> TensorType:
    table, rows = call.args
    if rows.dtype not in ("int64", "int32") or table.rank < 1:
        raise CaseError("needs a table and int64 or int32 indices")
    return TensorType((*rows.shape, *table.shape[1:]), table.dtype)


_SIZES = Attribute(Kind.SIZES, required=True)
_SOURCE = {"dim": Attribute(Kind.AXIS, 0), "index": Attribute(Kind.INT, 0)}

OPS = [
    method("view", _view, {"sizes": _SIZES}, owns_memory=False),
    method("reshape", _view, {"sizes": _SIZES}, owns_memory=False),
    method("permute", _permute, {"dims": Attribute(Kind.AXES, required=True)}, owns_memory=False),
    method(
        "transpose", _transpose, {"dim0": Attribute(Kind.AXIS, -2), "dim1": Attribute(Kind.AXIS, -1)}, owns_memory=False
    ),
    OpSpec("mT", (1, 1), _mt, lambda line: f"{line.args[0]}.mT", owns_memory=False, cost=2),
    method("unsqueeze", _unsqueeze, {"dim": Attribute(Kind.AXIS, 0)}, owns_memory=False),
    method("squeeze", _squeeze, {"dim": Attribute(Kind.AXIS, 0)}, owns_memory=False),
    OpSpec(
        "unflatten",
        (1, 1),
        _unflatten,
        lambda line: f"{line.args[0]}.unflatten({line.attrs['dim']}, ({line.sizes('sizes')},))",
        {"dim": DIM, "sizes": _SIZES},
        owns_memory=False,
        cost=2,
    ),
    method("flatten", _flatten, {"start": Attribute(Kind.AXIS, 0), "end": DIM}, owns_memory=False, cost=2),
    method("expand", _expand, {"sizes": _SIZES}, owns_memory=False),
    OpSpec(
        "expand_as",
        (2, 2),
        lambda call: _expand(Call(call.args[:1], {"sizes": call.args[1].shape}, call.dims)),
        lambda line: f"{line.args[0]}.expand_as({line.args[1]})",
        owns_memory=False,
        cost=2,
    ),
    method(
        "repeat_interleave",
        _repeat_interleave,
        {"repeats": Attribute(Kind.SIZE, required=True), "dim": Attribute(Kind.AXIS, 0)},
    ),
    method("repeat", _repeat, {"sizes": _SIZES}),
    OpSpec(
        "chunk",
        (1, 1),
        _chunk,
        lambda line: f"{line.args[0]}.chunk({line.attrs['chunks']}, dim={line.attrs['dim']})[{line.attrs['index']}]",
        {"chunks": Attribute(Kind.INT, required=True), "dim": DIM, "index": Attribute(Kind.INT, 0)},
        owns_memory=False,
    ),
    OpSpec(
        "unbind",
        (1, 1),
        _select,
        lambda line: f"{line.args[0]}.unbind({line.attrs['dim']})[{line.attrs['index']}]",
        _SOURCE,
        owns_memory=False,
        cost=2,
    ),
    method("select", _select, _SOURCE, owns_memory=False),
    OpSpec(
        "narrow",
        (1, 1),
        _narrow,
        _narrow_text,
        {
            "dim": DIM,
            "start": Attribute(Kind.SIZE, Size.of(0)),
            "stop": Attribute(Kind.SIZE, required=True),
            "step": Attribute(Kind.INT, 1),
        },
        owns_memory=False,
    ),
    method(
        "unfold",
        _unfold,
        {"dim": Attribute(Kind.AXIS, 0), "size": Attribute(Kind.SIZE, required=True), "step": Attribute(Kind.INT, 1)},
        owns_memory=False,
        cost=2,
    ),
    OpSpec("index", (2, 2), _index, lambda line: f"{line.args[0]}[{line.args[1]}]", cost=2),
    OpSpec(
        "stack",
        (2, 4),
        _stack,
        lambda line: f"torch.stack([{', '.join(line.args)}], dim={line.attrs['dim']})",
        {"dim": DIM},
        cost=2,
    ),
    OpSpec(
        "cat", (2, 4), _cat, lambda line: f"torch.cat([{', '.join(line.args)}], dim={line.attrs['dim']})", {"dim": DIM}
    ),
    method("contiguous", same, owns_memory=False),
    OpSpec(
        "clone",
        (1, 1),
        same,
        lambda line: (
            f"{line.args[0]}.clone("
            + ("" if line.attrs["memory_format"] == "preserve" else "memory_format=torch.contiguous_format")
            + ")"
        ),
        {"memory_format": word("preserve", "contiguous")},
    ),
    OpSpec("to_own_dtype", (1, 1), same, lambda line: f"{line.args[0]}.to({line.args[0]}.dtype)", owns_memory=False),
    method("detach", same, owns_memory=False),
    method("roll", same, {"shifts": Attribute(Kind.INT, 1), "dim": DIM}),
    method("flip", same, {"dim": DIM}),
]
