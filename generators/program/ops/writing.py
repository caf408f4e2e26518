"""Operations that write into their first argument, which is their result too. Their source text is a statement."""

from functools import partial

from generators.errors import require
from generators.program.case import TensorType
from generators.program.dtypes import category, promote
from generators.program.ops import spec
from generators.program.ops.pointwise import join
from generators.program.ops.shaping import narrow, narrow_text, select
from generators.program.ops.spec import Attribute, Call, Kind, Line, broadcast, flag, word
from generators.program.sizes import Size


def _put(call: Call, values: TensorType, part: tuple[Size, ...], *, cast: bool = False) -> TensorType:
    """The type of the target. Raises CaseError unless `values` broadcast to `part` of it and have its dtype, or with
    `cast` one that becomes it without a change of kind."""
    target = call.args[0].dtype
    sizes = [size.value(call.dims) for size in broadcast(part, values.shape, call.dims)]
    require(sizes == [size.value(call.dims) for size in part], f"writes {spec.show(values.shape)} to {spec.show(part)}")
    fits = category(values.dtype) <= category(target) if cast else values.dtype == target
    require(fits, f"writes {values.dtype} into {target}")
    return call.args[0]


def _given(call: Call, least: int = 1) -> tuple[TensorType, bool]:
    """The type of what is written, an argument or the number `other`, and whether it is a number."""
    other, alone = call.attrs["other"], len(call.args) == least
    require(alone == (other is not None), "takes a tensor to write, or the attribute 'other'")
    return (TensorType((), promote((), [other])), True) if alone else (call.args[-1], False)


def _copy(call: Call) -> TensorType:
    return _put(call, call.args[1], call.shape, cast=True)


def _set_slice(call: Call) -> TensorType:
    return _put(call, _given(call)[0], narrow(call).shape, cast=True)


def _set_select(call: Call) -> TensorType:
    return _put(call, _given(call)[0], select(call).shape, cast=True)


def _accumulate(call: Call) -> TensorType:
    values, _ = _given(call)
    require(call.args[0].dtype != "bool", "arithmetic on booleans")
    return _put(call, values, call.shape, cast=True)


def _index_put(call: Call) -> TensorType:
    *indices, values = call.args[1:]
    axis, lead = call.axis(), indices[0].shape
    for index in indices:
        require(index.dtype == "int64", "needs int64 indices")
        lead = broadcast(lead, index.shape, call.dims)
    behind = axis + len(indices)
    require(behind <= len(call.shape), f"{len(indices)} indices from axis {axis} of {spec.show(call.shape)}")
    is_method = call.attrs["form"] == "method"
    require(axis == 0 if is_method else not call.attrs["accumulate"], "only the method accumulates, on the first axes")
    return _put(call, values, (*call.shape[:axis], *lead, *call.shape[behind:]))


def _index_put_text(line: Line) -> str:
    target, *indices, values = line.args
    if line.attrs["form"] == "item":
        return f"{target}[{', '.join([':'] * (line.attrs['dim'] % line.types[0].rank) + indices)}] = {values}"
    return f"{target}.index_put_(({', '.join(indices)},), {', '.join([values, *line.options('accumulate')])})"


def _index_copy(call: Call) -> TensorType:
    _, index, values = call.args
    axis = call.axis()
    require((index.dtype, index.rank) == ("int64", 1), "needs int64 indices of one axis")
    part = (*call.shape[:axis], *index.shape, *call.shape[axis + 1 :])
    require(values.rank == len(part), "values need as many axes as the target")
    for i, size in enumerate(part):
        spec.must_equal(values.shape[i], size, call.dims, f"values: axis {i}")
    return _put(call, values, part)


def _scatter(call: Call) -> TensorType:
    index, axis = call.args[1], call.axis()
    values, is_number = _given(call, least=2)
    require(index.dtype == "int64" and index.rank == len(call.shape), "needs int64 indices of as many axes")
    counts = index.sizes(call.dims)
    room = [size.value(call.dims) for size in call.shape]
    within = all(count <= most for i, (count, most) in enumerate(zip(counts, room, strict=True)) if i != axis)
    require(within, f"indices {spec.show(index.shape)} exceed {spec.show(call.shape)}")
    if is_number:
        return _put(call, values, call.shape, cast=True)
    fits = values.rank == index.rank and all(a <= b for a, b in zip(counts, values.sizes(call.dims), strict=True))
    require(fits, f"indices {spec.show(index.shape)} exceed the values {spec.show(values.shape)}")
    return _put(call, TensorType((), values.dtype), ())


def _masked_scatter(call: Call) -> TensorType:
    _, mask, values = call.args
    require(mask.dtype == "bool", "the mask must be boolean")
    _put(call, TensorType(mask.shape, "bool"), call.shape, cast=True)
    require(values.sizes(call.dims) == call.args[0].sizes(call.dims), "values need the target's shape")
    return _put(call, values, call.shape)


def _masked_fill(call: Call) -> TensorType:
    require(call.args[1].dtype == "bool", "the mask must be boolean")
    spec.same_float(call)
    return _put(call, call.args[1], call.shape, cast=True)


def _lerp(call: Call) -> TensorType:
    return _put(call, call.args[1], spec.same_float(call).shape)


def _out(call: Call) -> TensorType:
    result = join(call, call.args[1:])
    require(result.rank == len(call.shape) and result.dtype != "bool", "writes another number of axes, or booleans")
    _put(call, TensorType(call.shape, "bool"), result.shape, cast=True)
    return _put(call, result, call.shape, cast=True)


def _last(line: Line, tensors: int = 1) -> str:
    return line.args[-1] if len(line.args) > tensors else line.text("other")


_writing = partial(spec.OpSpec, owns_memory=False, writes=True)
_AXIS, _OTHER = Attribute(Kind.AXIS, 0), Attribute(Kind.NUMBER)
_SLICE = {"dim": Attribute(Kind.AXIS, -1), "start": Attribute(Kind.SIZE, Size.of(0)), "step": Attribute(Kind.INT, 1)}
_SLICE |= {"stop": Attribute(Kind.SIZE, required=True), "other": _OTHER}
_SELECT = {"dim": _AXIS, "index": Attribute(Kind.INT, 0), "other": _OTHER}
_PUT = {"dim": _AXIS, "accumulate": flag(), "form": word("item", "method")}
_UPDATE = {"other": _OTHER, "form": word("method", "operator")}
_OUT = {"function": word("mul", "add", "sub", "maximum")}


def _update_text(line: Line) -> str:
    sign = {"add_": "+=", "mul_": "*="}[line.kind]
    if line.attrs["form"] == "operator":
        return f"{line.args[0]} {sign} {_last(line)}"
    return f"{line.args[0]}.{line.kind}({_last(line)})"


def _set_select_text(line: Line) -> str:
    before = ":, " * (line.attrs["dim"] % line.types[0].rank)
    return f"{line.args[0]}[{before}{line.attrs['index']}] = {_last(line)}"


OPS = [
    _writing("copy_", (2, 2), _copy, "{0}.copy_({1})"),
    _writing("set_slice", (1, 2), _set_slice, lambda line: f"{narrow_text(line)} = {_last(line)}", _SLICE),
    _writing("set_select", (1, 2), _set_select, _set_select_text, _SELECT),
    *(_writing(kind, (1, 2), _accumulate, _update_text, _UPDATE) for kind in ("add_", "mul_")),
    _writing("lerp_", (2, 2), _lerp, "{0}.lerp_({1}, {weight})", {"weight": Attribute(Kind.NUMBER, 0.5)}),
    _writing("index_put_", (3, 4), _index_put, _index_put_text, _PUT),
    *(
        _writing(kind, (3, 3), _index_copy, f"{{0}}.{kind}({{dim}}, {{1}}, {{2}})", {"dim": _AXIS})
        for kind in ("index_copy_", "index_add_")
    ),
    _writing(
        "scatter_",
        (2, 3),
        _scatter,
        lambda line: f"{line.args[0]}.scatter_({line.attrs['dim']}, {line.args[1]}, {_last(line, 2)})",
        {"dim": _AXIS, "other": _OTHER},
    ),
    _writing("scatter_add_", (3, 3), _scatter, "{0}.scatter_add_({dim}, {1}, {2})", {"dim": _AXIS, "other": _OTHER}),
    _writing("masked_scatter_", (3, 3), _masked_scatter, "{0}.masked_scatter_({1}, {2})"),
    _writing(
        "masked_fill_",
        (2, 2),
        _masked_fill,
        "{0}.masked_fill_({1}, {value})",
        {"value": Attribute(Kind.NUMBER, 0.0, ("min",))},
    ),
    _writing("out", (3, 3), _out, "torch.{function}({1}, {2}, out={0})", _OUT),
]
