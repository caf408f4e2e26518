"""Elementwise operations: arithmetic, comparisons, casts, masking."""

from collections.abc import Callable

from generators.errors import CaseError
from generators.program.case import TensorType
from generators.program.dtypes import DTYPES, category, promote
from generators.program.ops.spec import (
    Attribute,
    Call,
    Kind,
    Line,
    OpSpec,
    broadcast,
    flag,
    function,
    method,
    must_float,
    same,
    spell,
    word,
)

FORMS = ("operator", "method", "function", "in_place")
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _numbers(call: Call) -> list[bool | int | float]:
    other = call.attrs.get("other")
    return [other] if isinstance(other, int | float) else []


def _operands(call: Call) -> TensorType:
    if (len(call.args) == 1) == (call.attrs.get("other") is None):
        raise CaseError("takes two arguments, or one and the attribute 'other'")
    shape = call.args[0].shape
    if len(call.args) == 2:
        shape = broadcast(shape, call.args[1].shape, call.dims)
    return TensorType(shape, promote([(a.dtype, a.rank) for a in call.args], _numbers(call)))


def _arithmetic(call: Call) -> TensorType:
    result = _operands(call)
    if result.dtype == "bool":
        raise CaseError("arithmetic on two booleans")
    if call.attrs["form"] == "in_place":
        if call.attrs["reverse"]:
            raise CaseError("an in-place form can't be reversed")
        if result != call.args[0] and result.sizes(call.dims) != call.args[0].sizes(call.dims):
            raise CaseError("an in-place form must keep its first argument's shape")
        return TensorType(call.args[0].shape, call.args[0].dtype)
    return result


def _subtract(call: Call) -> TensorType:
    if any(a.dtype == "bool" for a in call.args):
        raise CaseError("booleans can't be subtracted")
    return _arithmetic(call)


def _divide(call: Call) -> TensorType:
    result = _arithmetic(call)
    if category(result.dtype) < 2:
        if call.attrs["form"] == "in_place":
            raise CaseError("integers can't be divided in place")
        return TensorType(result.shape, "float32")
    return result


def _binary(name: str) -> Callable[[Line], str]:
    def text(line: Line) -> str:
        left = line.args[0]
        right = line.args[1] if len(line.args) == 2 else line.number("other")
        if line.attrs["reverse"]:
            left, right = right, left
        form = str(line.attrs["form"])
        if form != "operator" and not line.attrs["reverse"]:
            return spell(form, name, left, right)
        return f"{left} {_SIGNS[name]} {f'({right})' if right.startswith('-') else right}"

    return text


def _comparison(name: str) -> Callable[[Line], str]:
    def text(line: Line) -> str:
        right = line.args[1] if len(line.args) == 2 else line.number("other")
        return f"{line.args[0]} {_COMPARE[name]} {right}"

    return text


def _logical(call: Call) -> TensorType:
    if any(a.dtype != "bool" for a in call.args):
        raise CaseError("needs boolean arguments")
    if len(call.args) == 1:
        return call.args[0]
    return TensorType(broadcast(call.args[0].shape, call.args[1].shape, call.dims), "bool")


def _float_unary(call: Call) -> TensorType:
    must_float(call)
    return call.args[0]


def _absolute(call: Call) -> TensorType:
    if category(call.args[0].dtype) == 0:
        raise CaseError("abs of booleans")
    return call.args[0]


_CAST_METHODS = {
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float64": "double",
    "bool": "bool",
    "int32": "int",
    "int64": "long",
}


def _cast_text(line: Line) -> str:
    form, dtype = line.attrs["form"], str(line.attrs["dtype"])
    if form == "method" and dtype in _CAST_METHODS:
        return f"{line.args[0]}.{_CAST_METHODS[dtype]}()"
    if form == "type":
        return f"{line.args[0]}.type({line.dtype()})"
    return f"{line.args[0]}.to({line.dtype()})"


def _masked_fill(call: Call) -> TensorType:
    value, mask = call.args
    if mask.dtype != "bool":
        raise CaseError("the mask of masked_fill must be boolean")
    must_float(call)
    fill = call.attrs["value"]
    # What a generator writes fits its dtypes, and autocast changes those.
    if (
        call.autocast
        and value.dtype == "float16"
        and isinstance(fill, int | float)
        and 65504 < abs(fill) < float("inf")
    ):
        raise CaseError(f"{fill} is beyond float16")
    shape = broadcast(value.shape, mask.shape, call.dims)
    if call.attrs["form"] == "in_place":
        if [s.value(call.dims) for s in shape] != list(value.sizes(call.dims)):
            raise CaseError("an in-place form must keep its first argument's shape")
        return value
    return TensorType(shape, value.dtype)


def _where(call: Call) -> TensorType:
    condition, *values = call.args
    if condition.dtype != "bool":
        raise CaseError("the condition of where must be boolean")
    if (len(values) == 1) == (call.attrs["other"] is None):
        raise CaseError("takes a condition and two values, or one value and the attribute 'other'")
    shape = condition.shape
    for value in values:
        shape = broadcast(shape, value.shape, call.dims)
    return TensorType(shape, promote([(v.dtype, v.rank) for v in values], _numbers(call)))


def _where_text(line: Line) -> str:
    values = list(line.args[1:])
    if len(values) == 1:
        values.append(line.number("other", dtype_of=1))
    if line.attrs["reverse"]:
        values.reverse()
    return f"torch.where({line.args[0]}, {', '.join(values)})"


_OTHER = Attribute(Kind.NUMBER)
_ARITHMETIC = {"other": _OTHER, "reverse": flag(), "form": word(*FORMS)}

OPS = [
    *(
        OpSpec(
            name,
            (1, 2),
            {"div": _divide, "sub": _subtract}.get(name, _arithmetic),
            _binary(name),
            _ARITHMETIC,
            cost=2 if name in ("sub", "div") else 1,
        )
        for name in _SIGNS
    ),
    *(
        OpSpec(
            name, (1, 2), lambda call: TensorType(_operands(call).shape, "bool"), _comparison(name), {"other": _OTHER}
        )
        for name in _COMPARE
    ),
    *(function(f"torch.{name}", (2, 2), _operands) for name in ("maximum", "minimum")),
    OpSpec("logical_and", (2, 2), _logical, lambda line: f"{line.args[0]} & {line.args[1]}"),
    OpSpec("logical_or", (2, 2), _logical, lambda line: f"{line.args[0]} | {line.args[1]}"),
    OpSpec(
        "logical_not",
        (1, 1),
        _logical,
        lambda line: f"~{line.args[0]}" if line.attrs["form"] == "operator" else f"{line.args[0]}.logical_not()",
        {"form": word("operator", "method")},
    ),
    OpSpec("neg", (1, 1), _float_unary, lambda line: f"-{line.args[0]}"),
    *(method(name, _float_unary) for name in ("exp", "sqrt", "rsqrt", "sigmoid", "log", "sin", "cos", "square")),
    method("abs", _absolute),
    OpSpec(
        "tanh",
        (1, 1),
        _float_unary,
        lambda line: spell(str(line.attrs["form"]), "tanh", *line.args),
        {"form": word("method", "function")},
    ),
    *(function(f"F.{name}", (1, 1), _float_unary) for name in ("relu", "silu", "softplus", "elu")),
    OpSpec(
        "gelu",
        (1, 1),
        _float_unary,
        lambda line: (
            "F.gelu(" + line.args[0] + (', approximate="tanh")' if line.attrs["approximate"] == "tanh" else ")")
        ),
        {"approximate": word("none", "tanh")},
    ),
    OpSpec(
        "pow",
        (1, 1),
        _float_unary,
        lambda line: f"{line.args[0]} ** {line.number('exponent')}",
        {"exponent": Attribute(Kind.NUMBER, 2)},
    ),
    OpSpec(
        "clamp",
        (1, 1),
        _float_unary,
        lambda line: f"{line.args[0]}.clamp(min={line.number('min')}, max={line.number('max')})",
        {"min": Attribute(Kind.NUMBER, -100.0), "max": Attribute(Kind.NUMBER, 100.0)},
    ),
    OpSpec(
        "cast",
        (1, 1),
        lambda call: TensorType(call.args[0].shape, call.text("dtype")),
        _cast_text,
        {"dtype": Attribute(Kind.WORD, None, DTYPES, required=True), "form": word("to", "method", "type")},
        owns_memory=False,
    ),
    OpSpec(
        "type_as",
        (2, 2),
        lambda call: TensorType(call.args[0].shape, call.args[1].dtype),
        lambda line: f"{line.args[0]}.type_as({line.args[1]})",
        owns_memory=False,
        cost=2,
    ),
    OpSpec(
        "masked_fill",
        (2, 2),
        _masked_fill,
        lambda line: spell(str(line.attrs["form"]), "masked_fill", *line.args, line.number("value")),
        {"value": Attribute(Kind.NUMBER, float("-inf"), ("min",)), "form": word("method", "function", "in_place")},
    ),
    OpSpec("where", (2, 3), _where, _where_text, {"other": Attribute(Kind.NUMBER, None, ("min",)), "reverse": flag()}),
    method("nan_to_num", same),
]
