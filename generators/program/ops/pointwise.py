"""Elementwise operations, arithmetic, comparisons, casts, and masking."""

import math
from dataclasses import replace

from generators.errors import require
from generators.program.ops.rules import (
    along,
    broadcast,
    check_holds,
    given_dtype,
    made_floating,
    matrices,
    promote_all,
    second_dtype,
)
from generators.program.ops.spec import (
    Attribute,
    Kind,
    Line,
    Memory,
    Operands,
    OpSpec,
    choose_text,
    first_shape,
    flag,
    spell,
    word,
)
from generators.program.sizes import Size, quotient
from generators.program.values import COMPLEX, DTYPES, category, promote
from generators.reasons import Reason

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _arithmetic(call: Operands) -> str:
    dtype, alpha, reverse = promote_all(call), call.attrs.get("alpha", 1), call.attrs["reverse"]
    require(dtype != "bool" or alpha == 1, "booleans take no alpha")
    single = "float64" not in [arg.dtype for arg in call.args]
    require(dtype != COMPLEX or single, f"{COMPLEX} with float64 is no {COMPLEX}")
    held = call.attrs["form"] != "in_place" or category(call.args[0].dtype) >= category(dtype)
    require(held, "an in-place form can't hold the result")
    require(alpha == 1 or not reverse, "takes alpha or reverse, not both", Reason.SPELLING)
    require(isinstance(alpha, int) or category(dtype) > 1, "alpha of integers must be an integer")
    require(not (reverse and call.attrs["form"] == "in_place"), "an in-place form can't be reversed", Reason.SPELLING)
    return dtype


def _size_dtype(call: Operands) -> str:
    return "float32" if call.args[0].dtype == COMPLEX else call.args[0].dtype


def _no_truth(call: Operands) -> str:
    """As `promote_all`, which is not bool: torch has no such kernels (measured in 2.13.0 and 2.15.0)."""
    dtype = promote_all(call)
    require(dtype != "bool", "booleans need another operand")
    return dtype


def _place(call: Operands) -> str:
    require(call.args[1].dtype != "bool", "takes no boolean boundaries")
    return "int64"


def _complex(call: Operands) -> str:
    require({arg.dtype for arg in call.args} == {"float32"}, "needs float32")
    return COMPLEX


def _quotient(call: Operands) -> str:
    dtype, in_place = _arithmetic(call), call.attrs["form"] == "in_place"
    floating = category(call.args[0].dtype if in_place else dtype) > 1
    require(floating or not in_place, "integers can't be divided in place")
    return dtype if floating else "float32"


def _difference(call: Operands) -> str:
    require(all(arg.dtype != "bool" for arg in call.args), "takes no booleans")
    return _arithmetic(call)


def _arithmetic_text(line: Line) -> str:
    left, right, form, factor = line.args[0], line.right, line.attrs["form"], line.options("alpha")
    if line.attrs["reverse"]:
        left, right = right, left
    elif form != "operator" or factor:
        return spell("method" if form == "operator" else form, line.kind, left, right, *factor)
    return f"{left} {_SIGNS[line.kind]} {f'({right})' if right.startswith('-') else right}"


_CAST_METHODS = {"float32": "float", "float16": "half", "bfloat16": "bfloat16", "float64": "double", "bool": "bool"}
_CAST_METHODS |= {"int8": "char", "int16": "short", "int32": "int", "int64": "long"}


def _cast_text(line: Line) -> str:
    form, dtype = line.attrs["form"], line.attrs["dtype"]
    if form == "method" and dtype in _CAST_METHODS:
        return f"{line.args[0]}.{_CAST_METHODS[dtype]}()"
    return line.fill("{0}.type(torch.{dtype})" if form == "type" else "{0}.to(torch.{dtype})")


def _fill_masked(call: Operands) -> str:
    value, mask = call.args
    require(mask.dtype == "bool", "the mask of masked_fill must be boolean")
    fill = call.attrs["value"]
    check_holds(value.dtype, fill)
    # Drawn fills fit their dtypes, but autocast changes dtypes.
    fits = not call.autocast or value.dtype != "float16" or fill == "min" or not 65504 < abs(fill) < math.inf
    require(fits, f"{fill} is outside the range of float16")
    return value.dtype


def _where(call: Operands) -> tuple[Size, ...]:
    condition, *values = call.args
    require(condition.dtype == "bool", "the condition of where must be boolean")
    numbers = [call.attrs[name] is not None for name in ("value", "other")]
    fits = len(values) + sum(numbers) == 2 and not (values and numbers[0])
    require(
        fits,
        "takes a condition and two values, a value and the attribute 'other', or 'value' and 'other'",
        Reason.SPELLING,
    )
    require(
        bool(values) or call.attrs["other"] != "min", "'min' is the minimum of a tensor's dtype, so it needs a tensor"
    )
    return call.broadcast(*(arg.shape for arg in call.args))


def _where_dtype(call: Operands) -> str:
    return promote_all(replace(call, args=call.args[1:]))


def _where_text(line: Line) -> str:
    values = [*line.args[1:], *([line.text("value")] if line.attrs["value"] is not None else [])]
    if len(values) == 1:
        values.append(line.text("other", dtype_of=len(line.args) - 1))
    if line.attrs["reverse"]:
        values.reverse()
    return f"torch.where({line.args[0]}, {', '.join(values)})"


def _clamp(call: Operands) -> tuple[Size, ...]:
    has_numbers = {call.attrs["min"], call.attrs["max"]} != {None}
    require(
        has_numbers == (len(call.args) == 1),
        "takes the attribute 'min', 'max' or both, or tensors instead",
        Reason.SPELLING,
    )
    return call.broadcast(*(arg.shape for arg in call.args))


def _clamp_dtype(call: Operands) -> str:
    return promote_all(call) if len(call.args) == 2 else _no_truth(call)


def _clamp_text(line: Line) -> str:
    names = ("min", "max") if len(line.args) == 3 else (line.attrs["bound"],)
    bounds = [f"{name}={bound}" for name, bound in zip(names, line.args[1:], strict=False)]
    return f"{line.args[0]}.{line.kind}({', '.join(bounds or line.options('min', 'max'))})"


def _power(call: Operands) -> str:
    base, exponent, others = call.attrs["base"], call.attrs["exponent"], len(call.args) - 1
    require(
        others + (base is not None) + (exponent != 2) <= 1,
        "takes a tensor as exponent, 'exponent' or 'base'",
        Reason.SPELLING,
    )
    number = exponent if base is None else base
    dtype = promote([(arg.dtype, arg.rank) for arg in call.args], [] if others else [number])
    require(dtype != "bool", "a power of two booleans")
    require(category(dtype) == 2 or exponent >= 0, "integers take no negative power")
    return dtype


def _power_text(line: Line) -> str:
    left, right = [line.args[0], line.args[1] if len(line.args) == 2 else line.text("exponent")]
    if line.attrs["base"] is not None:
        left, right = line.text("base"), left
    return f"{f'({left})' if left.startswith('-') else left} ** {right}"


def _lerp_dtype(call: Operands) -> str:
    require((len(call.args) == 3) == (call.attrs["weight"] is None), "takes three arguments, or two and 'weight'")
    require(len({arg.dtype for arg in call.args}) == 1, "needs equal dtypes")
    return call.args[0].dtype


def _halve(call: Operands, whole: Size) -> tuple[Size]:
    (length,) = call.numbers((whole,))
    require(length % 2 == 0, f"an axis of {length} has no halves")
    return (quotient(whole, Size.of(2), length // 2),)


def _add_product(call: Operands) -> str:
    dtype = _no_truth(call)
    require(category(dtype) == 2 or not isinstance(call.attrs["value"], float), "integers take no fraction")
    return dtype


def _activate(call: Operands) -> tuple[Size, ...]:
    least, most = call.attrs.get("min_val"), call.attrs.get("max_val")
    require((-1 if least is None else least) <= (1 if most is None else most), "min_val is above max_val")
    # "Cannot do hardtanh on an unsigned type with negative limits" (aten/src/ATen/native/Activation.cpp).
    require(call.args[0].dtype != "uint8" or "min_val" not in call.attrs, "takes no uint8")
    return call.shape


def _triangle_text(line: Line) -> str:
    return line.fill(f"{{0}}.{line.kind}({'' if line.attrs['diagonal'] == _ZERO else '{diagonal}'})")


_OTHER, _MIN = Attribute(Kind.NUMBER), ("min",)
_ARITHMETIC = {"other": _OTHER, "reverse": flag(), "form": word("operator", "method", "function", "in_place")}
_SUM = {**_ARITHMETIC, "alpha": Attribute(Kind.NUMBER, 1)}
_CAST = {"dtype": Attribute(Kind.WORD, None, DTYPES, required=True), "form": word("to", "method", "type")}
_FILLS = {
    "method": "{0}.masked_fill({1}, {value})",
    "function": "torch.masked_fill({0}, {1}, {value})",
    "in_place": "{0}.masked_fill_({1}, {value})",
}
_FILL = {"value": Attribute(Kind.NUMBER, -math.inf, _MIN), "form": word(*_FILLS)}
_WHERE = {"value": _OTHER, "other": Attribute(Kind.NUMBER, None, _MIN), "reverse": flag()}
_ZERO = Size.of(0)
_DIAGONAL = {"diagonal": Attribute(Kind.SIZE, _ZERO)}
_POWER = {"exponent": Attribute(Kind.NUMBER, 2), "base": _OTHER}
_CLAMP = {"min": _OTHER, "max": _OTHER, "bound": word("min", "max")}
_LAST = {"dim": Attribute(Kind.AXIS, -1)}
_REPLACED = dict.fromkeys(("nan", "posinf", "neginf"), _OTHER)
_LOGIC = {"other": Attribute(Kind.FLAG)}

_RIGHT = {"right": flag()}
_ROUNDED = {
    "operator": "{0} // {right}",
    "floor": 'torch.div({0}, {right}, rounding_mode="floor")',
    "trunc": 'torch.div({0}, {right}, rounding_mode="trunc")',
}
_REMAINDER, _FMOD = {"operator": "{0} % {right}"}, {"function": "torch.fmod({0}, {right})"}
_FLOATING = (
    *("exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log", "sin", "cos"),
    *("reciprocal", "exp2", "expm1", "erf", "log1p", "log2", "acos", "erfinv"),
)
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("relu", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "logsigmoid", "selu"), ()),
    "softplus": ("beta", "threshold"),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "hardtanh": ("min_val", "max_val"),
}
"""Functions of torch.nn.functional, and the numbers that they take."""

OPS = [
    OpSpec("add", broadcast, _arithmetic, "all", _arithmetic_text, _SUM, arity=(1, 2), saves=False),
    OpSpec("sub", broadcast, _difference, "all", _arithmetic_text, _SUM, arity=(1, 2), saves=False, cost=2),
    OpSpec("mul", broadcast, _arithmetic, "all", _arithmetic_text, _ARITHMETIC, arity=(1, 2)),
    OpSpec("div", broadcast, _quotient, "all", _arithmetic_text, _ARITHMETIC, arity=(1, 2), cost=2),
    *(
        OpSpec(
            kind,
            broadcast,
            "bool",
            "all" if kind in ("eq", "ne") else "any",
            f"{{0}} {sign} {{right}}",
            {"other": _OTHER},
            arity=(1, 2),
        )
        for kind, sign in _COMPARE.items()
    ),
    *(
        OpSpec(kind, broadcast, promote_all, "integral", f"{{0}} {sign} {{right}}", _LOGIC, arity=(1, 2))
        for kind, sign in (("logical_and", "&"), ("logical_or", "|"), ("logical_xor", "^"))
    ),
    *(
        OpSpec(f"nonzero_{name}", broadcast, "bool", text=f"torch.logical_{name}({{args}})", arity=(2, 2))
        for name in ("and", "or", "xor")
    ),
    *(
        OpSpec(kind, broadcast, promote_all, text=f"torch.{kind}({{args}})", arity=(2, 2))
        for kind in ("maximum", "minimum")
    ),
    *(
        OpSpec(
            kind,
            broadcast,
            _no_truth,
            text=choose_text("form", forms),
            attributes={"other": _OTHER, "form": word(*forms)},
            arity=(1, 2),
        )
        for kind, forms in (("remainder", _REMAINDER), ("fmod", _FMOD), ("floor_divide", _ROUNDED))
    ),
    OpSpec("bucketize", dtype=_place, text="torch", attributes=_RIGHT, arity=(2, 2)),
    OpSpec("atan2", broadcast, made_floating, "any", "torch.atan2({args})", arity=(2, 2)),
    OpSpec("polar", broadcast, _complex, "float", "torch.polar({args})", arity=(2, 2), cost=2),
    OpSpec("clamp", _clamp, _clamp_dtype, text=_clamp_text, attributes=_CLAMP, arity=(1, 3)),
    OpSpec("lerp", broadcast, _lerp_dtype, "float", "torch", {"weight": _OTHER}, arity=(2, 3)),
    *(
        OpSpec(kind, broadcast, _add_product, takes, "torch", {"value": _OTHER}, arity=(3, 3))
        for kind, takes in (("addcmul", "any"), ("addcdiv", "float"))
    ),
    *(
        OpSpec(kind, broadcast, _no_truth, "integral", f"{{0}} {sign} {{right}}", {"other": _OTHER}, arity=(1, 2))
        for kind, sign in (("shift_left", "<<"), ("shift_right", ">>"))
    ),
    OpSpec("logical_not", takes="integral", text="~{0}"),
    OpSpec("neg", takes="signed", text="-{0}", saves=False),
    *(OpSpec(kind, dtype=made_floating) for kind in _FLOATING),
    OpSpec("square", dtype=lambda call: "int64" if call.args[0].dtype == "bool" else call.args[0].dtype),
    OpSpec("abs", first_shape, _size_dtype, "signed"),
    *(OpSpec(kind, takes="number") for kind in ("floor", "ceil", "round")),
    OpSpec("sign"),
    *(OpSpec(kind, dtype="bool", saves=False) for kind in ("isnan", "isinf", "isfinite")),
    *(
        OpSpec(
            kind,
            _activate,
            takes="number" if kind in ("relu", "relu6", "hardtanh") else "float",
            text="functional",
            attributes=dict.fromkeys(names, _OTHER),
        )
        for kind, names in ACTIVATIONS.items()
    ),
    OpSpec("nan_to_num", text="method", attributes=_REPLACED),
    OpSpec("glu", along(_halve), takes="float", text="F.glu({0}, dim={dim})", attributes=_LAST),
    OpSpec("gelu", takes="float", text="functional", attributes={"approximate": word("none", "tanh")}),
    OpSpec("pow", broadcast, _power, "any", _power_text, _POWER, arity=(1, 2)),
    OpSpec("cast", dtype=given_dtype, text=_cast_text, attributes=_CAST, memory=Memory.UNKNOWN),
    OpSpec("type_as", dtype=second_dtype, text="{0}.type_as({1})", memory=Memory.UNKNOWN, arity=(2, 2), cost=2),
    OpSpec("masked_fill", broadcast, _fill_masked, text=choose_text("form", _FILLS), attributes=_FILL, arity=(2, 2)),
    OpSpec("where", _where, _where_dtype, text=_where_text, attributes=_WHERE, arity=(1, 3)),
    *(OpSpec(kind, matrices, text=_triangle_text, attributes=_DIAGONAL) for kind in ("tril", "triu")),
]
