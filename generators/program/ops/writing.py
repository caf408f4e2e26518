"""Operations that write into their first argument, which is their result too. Their source text is a statement."""

from collections.abc import Callable
from functools import partial

from generators.errors import require
from generators.program.case import TensorType
from generators.program.dtypes import category, promote
from generators.program.ops import spec
from generators.program.ops.shaping import narrow, narrow_text, select
from generators.program.ops.spec import Attribute, Call, Kind, Line, broadcast, flag, word
from generators.program.sizes import Size


def _put(call: Call, part: tuple[Size, ...], *, cast: bool = False, values: TensorType | None = None) -> TensorType:
    """The type of the target. Raises CaseError unless the values, by default the last argument, broadcast to `part` of
    it and have its dtype, or with `cast` one that becomes it without a change of kind."""
    target, values = call.args[0].dtype, values or call.args[-1]
    sizes = [size.value(call.dims) for size in broadcast(part, values.shape, call.dims)]
    require(sizes == [size.value(call.dims) for size in part], f"writes {spec.show(values.shape)} to {spec.show(part)}")
    fits = category(values.dtype) <= category(target) if cast else values.dtype == target
    require(fits, f"writes {values.dtype} into {target}")
    return call.args[0]


def _put_any(call: Call, part: tuple[Size, ...]) -> TensorType:
    """The same where values may be the number `other`."""
    other, alone = call.attrs["other"], len(call.args) == 1
    require(alone == (other is not None), "takes a tensor to write, or the attribute 'other'")
    return _put(call, part, cast=True, values=TensorType((), promote((), [other])) if alone else None)


def _accumulate(call: Call) -> TensorType:
    require(call.args[0].dtype != "bool", "arithmetic on booleans")
    return _put_any(call, call.shape)


def _accumulate_text(line: Line) -> str:
    if line.attrs["form"] == "operator":
        return f"{line.args[0]} {'+' if line.kind == 'add_' else '*'}= {_value(line)}"
    return f"{line.args[0]}.{line.kind}({_value(line)})"


def _index_put(call: Call) -> TensorType:
    axis, indices = call.axis(), call.args[1:-1]
    lead: tuple[Size, ...] = ()
    for index in indices:
        require(index.dtype == "int64", "needs int64 indices")
        lead = broadcast(lead, index.shape, call.dims)
    require(axis + len(indices) <= len(call.shape), f"{len(indices)} indices from axis {axis} on")
    is_method = call.attrs["form"] == "method"
    require(axis == 0 if is_method else not call.attrs["accumulate"], "only the method accumulates, on the first axes")
    return _put(call, (*call.shape[:axis], *lead, *call.shape[axis + len(indices) :]))


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
    exact = [size.value(call.dims) for size in part] == [*values.sizes(call.dims)]
    require(exact, f"values of {spec.show(values.shape)} where {spec.show(part)} is written")
    return _put(call, part)


def _masked(call: Call) -> TensorType:
    require(call.args[1].dtype == "bool", "the mask must be boolean")
    _put(call, call.shape, cast=True, values=call.args[1])
    if len(call.args) == 2:
        return spec.same_float(call)
    require(call.args[2].sizes(call.dims) == call.args[0].sizes(call.dims), "values need the target's shape")
    return _put(call, call.shape)


def _value(line: Line) -> str:
    return line.args[1] if len(line.args) == 2 else line.text("other")


def _assign(part: Callable[[Line], str]) -> Callable[[Line], str]:
    return lambda line: f"{part(line)} = {_value(line)}"


def _select_text(line: Line) -> str:
    return f"{line.args[0]}[{':, ' * (line.attrs['dim'] % line.types[0].rank)}{line.attrs['index']}]"


_writing = partial(spec.OpSpec, owns_memory=False, writes=True)
_AXIS, _OTHER = {"dim": Attribute(Kind.AXIS, 0)}, {"other": Attribute(Kind.NUMBER)}
_SLICE = {"dim": Attribute(Kind.AXIS, -1), "start": Attribute(Kind.SIZE, Size.of(0)), "step": Attribute(Kind.INT, 1)}
_SLICE |= {"stop": Attribute(Kind.SIZE, required=True), **_OTHER}
_SELECT = {**_AXIS, "index": Attribute(Kind.INT, 0), **_OTHER}
_PUT = {**_AXIS, "accumulate": flag(), "form": word("item", "method")}
_UPDATE = {**_OTHER, "form": word("method", "operator")}
_ALONG = "{{0}}.{}({{dim}}, {{1}}, {{2}})"
_FILL = {"value": Attribute(Kind.NUMBER, 0.0, ("min",))}

OPS = [
    _writing("copy_", (2, 2), lambda call: _put(call, call.shape, cast=True), "{0}.copy_({1})"),
    _writing("set_slice", (1, 2), lambda call: _put_any(call, narrow(call).shape), _assign(narrow_text), _SLICE),
    _writing("set_select", (1, 2), lambda call: _put_any(call, select(call).shape), _assign(_select_text), _SELECT),
    *(_writing(kind, (1, 2), _accumulate, _accumulate_text, _UPDATE) for kind in ("add_", "mul_")),
    _writing(
        "lerp_",
        (2, 2),
        lambda call: _put(call, spec.same_float(call).shape),
        "{0}.lerp_({1}, {weight})",
        {"weight": Attribute(Kind.NUMBER, 0.5)},
    ),
    _writing("index_put_", (3, 4), _index_put, _index_put_text, _PUT),
    *(_writing(kind, (3, 3), _index_copy, _ALONG.format(kind), _AXIS) for kind in ("index_copy_", "index_add_")),
    _writing("masked_scatter_", (3, 3), _masked, "{0}.masked_scatter_({1}, {2})"),
    _writing("masked_fill_", (2, 2), _masked, "{0}.masked_fill_({1}, {value})", _FILL),
]
