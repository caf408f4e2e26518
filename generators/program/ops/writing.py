"""Operations that write into their first argument, which is their result too."""

from dataclasses import replace
from functools import partial

from generators.errors import require
from generators.program.case import TensorType
from generators.program.ops import pointwise, shaping
from generators.program.ops.rules import along, check_holds, given_places, one_index, put_indices, slice_size
from generators.program.ops.shaping import SELECT, SLICE, item_text, slice_text
from generators.program.ops.spec import (
    Attribute,
    Kind,
    Line,
    Memory,
    Operands,
    OpSpec,
    ShapeRule,
    choose_text,
    first_dtype,
    first_shape,
    flag,
    spell,
    word,
)
from generators.program.sizes import Size, show
from generators.program.values import category, promote
from generators.reasons import Reason


def _put(
    call: Operands, part: tuple[Size, ...], *, cast: bool = False, values: TensorType | None = None
) -> tuple[Size, ...]:
    """The shape of the target.

    Raises CaseError unless the values, by default the last argument, broadcast to `part` of the target and have its
    dtype, or with `cast` a dtype that becomes the target's without a change of kind.
    """
    target, values = call.args[0].dtype, values or call.args[-1]
    call.must_broadcast(values.shape, part, "the values'")
    fits = category(values.dtype) <= category(target) if cast else values.dtype == target
    require(fits, f"writes {values.dtype} into {target}")
    return call.shape


def _put_whole(call: Operands) -> tuple[Size, ...]:
    return _put(call, call.shape)


def _assign(part: ShapeRule) -> ShapeRule:
    """The rule of an operation that writes a tensor or the number `other` into a part of its target."""

    def infer(call: Operands) -> tuple[Size, ...]:
        other, alone = call.attrs.get("other"), len(call.args) == 1
        require(alone == (other is not None), "takes a tensor to write, or the attribute 'other'", Reason.SPELLING)
        is_truth = call.args[0].dtype == "bool" and other in (0, 1)
        number = TensorType((), "bool" if is_truth else promote((), [other])) if other is not None else None
        return _put(call, part(call), cast=True, values=number)

    return infer


def _compute_in_place(call: Operands) -> tuple[Size, ...]:
    require(call.args[0].dtype != "bool", "arithmetic on booleans")
    return _assign(first_shape)(call)


def _index_put(call: Operands) -> tuple[Size, ...]:
    part = put_indices(call, call.args[1:-1])
    is_method = call.attrs["form"] == "method"
    allowed = call.axis() == 0 if is_method else not call.attrs["accumulate"]
    require(allowed, "only the method accumulates, on the first axes")
    return _put(call, part)


def _index_put_text(line: Line) -> str:
    target, *indices, values = line.args
    if line.attrs["form"] == "item":
        return f"{item_text(line, indices)} = {values}"
    return f"{target}.index_put_(({', '.join(indices)},), {', '.join([values, *line.options('accumulate')])})"


def _index_copy(call: Operands) -> tuple[Size, ...]:
    values, part = call.args[2], along(given_places)(call)
    exact = call.numbers(part) == values.sizes(call.dims)
    require(exact, f"values of {show(values.shape)} where {show(part)} is written")
    return _put(call, part)


def _put_masked(call: Operands) -> tuple[Size, ...]:
    target, mask, *values = call.args
    require(mask.dtype == "bool", "the mask must be boolean")
    if not values:
        check_holds(target.dtype, call.attrs["value"])
    for item in values:
        require(item.sizes(call.dims) == target.sizes(call.dims), "values need the target's shape")
        _put(call, call.shape)
    return _put(call, call.shape, cast=True, values=mask)


def _slice_text(line: Line) -> str:
    return f"{slice_text(line)} = {line.right}"


def _select_text(line: Line) -> str:
    return f"{item_text(line, [line.text('index')])} = {line.right}"


def _fill(call: Operands) -> tuple[Size, ...]:
    check_holds(call.args[0].dtype, call.attrs.get("value", 0))
    return call.shape


def _overwrite(spec: OpSpec) -> OpSpec:
    """The operation that overwrites its first argument with the result of another operation."""

    def infer(call: Operands) -> tuple[Size, ...]:
        result, target = spec.infer(call), call.args[0]
        fits = result.sizes(call.dims) == target.sizes(call.dims) and category(result.dtype) <= category(target.dtype)
        require(fits, f"can't hold {show(result.shape)} of {result.dtype} in {show(target.shape)} of {target.dtype}")
        return target.shape

    text = spec.text if callable(spec.text) or spec.text == "method" else ""
    if spec.kind in pointwise.ACTIVATIONS:
        text = _call_in_place
    return replace(spec, kind=f"{spec.kind}_", shape=infer, dtype=first_dtype, text=text, memory=Memory.TARGET)


def _call_in_place(line: Line) -> str:
    return spell("functional", line.kind.removesuffix("_"), *line.args, *line.options(*line.attrs), "inplace=True")


def _update(kind: str, sign: str, takes: str = "any") -> OpSpec:
    forms = {"method": f"{{0}}.{kind}({{right}})", "operator": f"{{0}} {sign}= {{right}}"}
    attributes = {**_OTHER, "form": word(*forms)}
    return _writing(kind, _compute_in_place, first_dtype, takes, choose_text("form", forms), attributes, arity=(1, 2))


_writing = partial(OpSpec, memory=Memory.TARGET)
_AXIS, _OTHER = {"dim": Attribute(Kind.AXIS, 0)}, {"other": Attribute(Kind.NUMBER)}
_PUT = {**_AXIS, "accumulate": flag(), "form": word("item", "method")}
_WEIGHT, _FILL = {"weight": Attribute(Kind.NUMBER, 0.5)}, {"value": Attribute(Kind.NUMBER, 0.0, ("min",))}
_OVERWRITING = (
    *("relu", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "selu", "leaky_relu", "elu", "hardtanh"),
    *("exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "sin", "cos", "square", "reciprocal", "erf", "neg", "abs"),
    *("sign", "floor", "ceil", "round", "clamp", "nan_to_num", "scatter", "scatter_add"),
)
_SLICE, _SELECT = {**SLICE, **_OTHER}, {**SELECT, **_OTHER}

OPS = [
    _writing("copy_", _assign(first_shape), text="{0}.copy_({1})", arity=(2, 2), saves=False),
    _writing("set_slice", _assign(along(slice_size)), text=_slice_text, attributes=_SLICE, arity=(1, 2), saves=False),
    _writing("set_select", _assign(along(one_index)), text=_select_text, attributes=_SELECT, arity=(1, 2), saves=False),
    _update("add_", "+"),
    _update("sub_", "-", "number"),
    _update("mul_", "*"),
    *(_update(kind, sign, "float") for kind, sign in (("div_", "/"), ("pow_", "**"))),
    *(_overwrite(spec) for spec in (*pointwise.OPS, *shaping.OPS) if spec.kind in _OVERWRITING),
    _writing("fill_", _fill, text="{0}.fill_({value})", attributes=_FILL, saves=False),
    _writing("zero_", _fill, saves=False),
    _writing("lerp_", _put_whole, takes="float", text="{0}.lerp_({1}, {weight})", attributes=_WEIGHT, arity=(2, 2)),
    _writing("index_put_", _index_put, text=_index_put_text, attributes=_PUT, arity=(3, 4)),
    *(
        _writing(kind, _index_copy, text=f"{{0}}.{kind}({{dim}}, {{1}}, {{2}})", attributes=_AXIS, arity=(3, 3))
        for kind in ("index_copy_", "index_add_")
    ),
    OpSpec("index_add", _index_copy, text="{0}.index_add({dim}, {1}, {2})", attributes=_AXIS, arity=(3, 3), cost=2),
    _writing("masked_scatter_", _put_masked, text="{0}.masked_scatter_({1}, {2})", arity=(3, 3)),
    _writing("masked_fill_", _put_masked, text="{0}.masked_fill_({1}, {value})", attributes=_FILL, arity=(2, 2)),
]
