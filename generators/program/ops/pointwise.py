"""Elementwise operations: arithmetic, comparisons, casts, masking."""

import math

from generators.errors import CaseError, require
from generators.program.case import TensorType
from generators.program.dtypes import DTYPES, category, promote
from generators.program.ops import spec
from generators.program.ops.spec import Attribute, Call, Kind, Line, OpSpec, broadcast, flag, same_float, word
from generators.program.sizes import Size

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def join(call: Call, values: tuple[TensorType, ...], shape: tuple[Size, ...] = ()) -> TensorType:
    """The type of values together, and of numbers; they broadcast with each other and with `shape`."""
    for value in values:
        shape = broadcast(shape, value.shape, call.dims)
    given = (call.attrs.get(name) for name in ("other", "value"))
    numbers = [number for number in given if isinstance(number, int | float)]
    return TensorType(shape, promote([(v.dtype, v.rank) for v in values], numbers))


def _operands(call: Call) -> TensorType:
    alone = len(call.args) == 1
    require(alone == (call.attrs.get("other") is not None), "takes two arguments, or one and the attribute 'other'")
    return join(call, call.args)


def _overwritten(call: Call, shape: tuple[Size, ...]) -> TensorType:
    """The type of the first argument. Raises CaseError unless it has this shape, which is that of the result."""
    fits = [s.value(call.dims) for s in shape] == [s.value(call.dims) for s in call.shape]
    require(fits, "an in-place form must keep its first argument's shape")
    return call.args[0]


def _arithmetic(call: Call) -> TensorType:
    result = _operands(call)
    require(result.dtype != "bool", "arithmetic on two booleans")
    alpha = call.attrs.get("alpha", 1)
    require(alpha == 1 or not call.attrs["reverse"], "takes alpha or reverse, not both")
    require(isinstance(alpha, int) or category(result.dtype) == 2, "alpha of integers must be an integer")
    if call.attrs["form"] != "in_place":
        return result
    require(not call.attrs["reverse"], "an in-place form can't be reversed")
    return _overwritten(call, result.shape)


def _subtract(call: Call) -> TensorType:
    require(all(a.dtype != "bool" for a in call.args), "booleans can't be subtracted")
    return _arithmetic(call)


def _divide(call: Call) -> TensorType:
    result = _arithmetic(call)
    if category(result.dtype) == 2:
        return result
    require(call.attrs["form"] != "in_place", "integers can't be divided in place")
    return TensorType(result.shape, "float32")


def _right(line: Line) -> str:
    return line.args[1] if len(line.args) == 2 else line.text("other")


def _arithmetic_text(line: Line) -> str:
    left, right, form = line.args[0], _right(line), line.attrs["form"]
    factor = [f"alpha={line.text('alpha')}"] if line.attrs.get("alpha", 1) != 1 else []
    if line.attrs["reverse"]:
        left, right = right, left
    elif form != "operator" or factor:
        return spec.spell("method" if form == "operator" else form, line.kind, left, right, *factor)
    return f"{left} {_SIGNS[line.kind]} {f'({right})' if right.startswith('-') else right}"


def _compare(call: Call) -> TensorType:
    return TensorType(_operands(call).shape, "bool")


def _comparison_text(line: Line) -> str:
    return f"{line.args[0]} {_COMPARE[line.kind]} {_right(line)}"


def _logical(call: Call) -> TensorType:
    require(all(a.dtype == "bool" for a in call.args), "needs boolean arguments")
    return join(call, call.args)


def _absolute(call: Call) -> TensorType:
    require(category(call.args[0].dtype) > 0, "abs of booleans")
    return call.args[0]


_CAST_METHODS = {"float32": "float", "float16": "half", "bfloat16": "bfloat16", "float64": "double", "bool": "bool"}
_CAST_METHODS |= {"int32": "int", "int64": "long"}


def _cast(call: Call) -> TensorType:
    """To the attribute `dtype`, or to the dtype of a second argument."""
    return TensorType(call.shape, call.attrs["dtype"] if len(call.args) == 1 else call.args[1].dtype)


def _cast_text(line: Line) -> str:
    form, dtype = line.attrs["form"], line.attrs["dtype"]
    if form == "method" and dtype in _CAST_METHODS:
        return f"{line.args[0]}.{_CAST_METHODS[dtype]}()"
    return line.fill("{0}.type(torch.{dtype})" if form == "type" else "{0}.to(torch.{dtype})")


def _masked_fill(call: Call) -> TensorType:
    value, mask = call.args
    require(mask.dtype == "bool", "the mask of masked_fill must be boolean")
    same_float(call)
    fill = call.attrs["value"]
    # What a generator writes fits its dtypes, and autocast changes those.
    if call.autocast and value.dtype == "float16" and fill != "min" and 65504 < abs(fill) < math.inf:
        raise CaseError(f"{fill} is outside the range of float16")
    shape = broadcast(value.shape, mask.shape, call.dims)
    return _overwritten(call, shape) if call.attrs["form"] == "in_place" else call.reshape(*shape)


def _where(call: Call) -> TensorType:
    condition, *values = call.args
    require(condition.dtype == "bool", "the condition of where must be boolean")
    value, other = call.attrs["value"], call.attrs["other"]
    if len(values) + (value is not None) + (other is not None) != 2 or (values and value is not None):
        raise CaseError("takes a condition and two values, one value and the attribute 'other', or 'value' and 'other'")
    require(bool(values) or other != "min", "needs a value that 'min' is of the dtype of")
    return join(call, tuple(values), condition.shape)


def _where_text(line: Line) -> str:
    values = [*line.args[1:], *([line.text("value")] if line.attrs["value"] is not None else [])]
    if len(values) == 1:
        values.append(line.text("other", dtype_of=len(line.args) - 1))
    if line.attrs["reverse"]:
        values.reverse()
    return f"torch.where({line.args[0]}, {', '.join(values)})"


_OTHER = Attribute(Kind.NUMBER)
_ARITHMETIC = {"other": _OTHER, "reverse": flag(), "form": word("operator", "method", "function", "in_place")}
_SUM = {**_ARITHMETIC, "alpha": Attribute(Kind.NUMBER, 1)}
_CAST = {"dtype": Attribute(Kind.WORD, None, DTYPES, required=True), "form": word("to", "method", "type")}
_FILLS = {
    "method": "{0}.masked_fill({1}, {value})",
    "function": "torch.masked_fill({0}, {1}, {value})",
    "in_place": "{0}.masked_fill_({1}, {value})",
}
_WHERE = {"value": _OTHER, "other": Attribute(Kind.NUMBER, None, ("min",)), "reverse": flag()}
_GELU = {"none": "F.gelu({0})", "tanh": 'F.gelu({0}, approximate="tanh")'}
_POWER = {"exponent": Attribute(Kind.NUMBER, 2)}

OPS = [
    OpSpec("add", (1, 2), _arithmetic, _arithmetic_text, _SUM),
    OpSpec("sub", (1, 2), _subtract, _arithmetic_text, _SUM, cost=2),
    OpSpec("mul", (1, 2), _arithmetic, _arithmetic_text, _ARITHMETIC),
    OpSpec("div", (1, 2), _divide, _arithmetic_text, _ARITHMETIC, cost=2),
    *(OpSpec(kind, (1, 2), _compare, _comparison_text, {"other": _OTHER}) for kind in _COMPARE),
    OpSpec("logical_and", (2, 2), _logical, "{0} & {1}"),
    OpSpec("logical_not", (1, 1), _logical, "~{0}"),
    OpSpec("neg", (1, 1), same_float, "-{0}"),
    *(
        spec.method(kind, same_float)
        for kind in ("exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "sin", "cos", "square")
    ),
    spec.method("abs", _absolute),
    *(spec.function(f"F.{kind}", (1, 1), same_float) for kind in ("relu", "silu")),
    spec.forms("gelu", (1, 1), same_float, "approximate", _GELU),
    OpSpec("pow", (1, 1), same_float, "{0} ** {exponent}", _POWER),
    OpSpec("cast", (1, 1), _cast, _cast_text, _CAST, owns_memory=False),
    OpSpec("type_as", (2, 2), _cast, "{0}.type_as({1})", owns_memory=False, cost=2),
    spec.forms("masked_fill", (2, 2), _masked_fill, "form", _FILLS, value=Attribute(Kind.NUMBER, -math.inf, ("min",))),
    OpSpec("where", (1, 3), _where, _where_text, _WHERE),
]
