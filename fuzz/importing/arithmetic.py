"""Reads arithmetic, comparisons, reductions, casts and constants."""

from typing import Any

from fuzz.importing.call import Call, Reader, Ref, Untranslatable, freeze
from generators.program.case import Attr, TensorType

_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div"}
_ARITHMETIC |= {"true_divide": "div", "subtract": "sub", "__truediv__": "div"}
_REVERSED = {"__rsub__": "sub", "rsub": "sub", "__rtruediv__": "div", "__rdiv__": "div"}
_ARITHMETIC |= _REVERSED
_BITWISE = ("bitwise_{}", "__{}__", "__r{}__")
_BINARY = {f"{name}_": f"{name}_" for name in ("add", "sub", "mul", "div", "pow")}
_BINARY |= {"__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "__ipow__": "pow_"}
_BINARY |= {"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le", "not_equal": "ne"}
_BINARY |= {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_BINARY |= {f"__{name}__": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_BINARY |= {"__floordiv__": "floor_divide", "floor_divide": "floor_divide", "remainder": "remainder", "fmod": "fmod"}
_BINARY |= {f"logical_{name}": f"nonzero_{name}" for name in ("and", "or", "xor")}
_BINARY |= {how.format(name): f"logical_{name}" for name in ("and", "or", "xor") for how in _BITWISE}
_CASTS = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "bool": "bool"}
_CASTS |= {"int": "int32", "long": "int64", "byte": "uint8"}
_SUMS = ("sum", "mean", "amax", "amin", "argmax", "var", "std", "prod", "norm")
_REDUCTIONS = (*_SUMS, "vector_norm", "argmin", "any", "all")


def _arithmetic(call: Call) -> list[str]:
    kind, reverse = _ARITHMETIC[call.function], call.function in _REVERSED
    given = call.bind("input", "other", "alpha", "rounding_mode")
    left, right, alpha = given["input"], given["other"], given["alpha"]
    if given["rounding_mode"] is not None:
        args = [call.tensor(one) for one in (left, right) if isinstance(one, Ref)]
        number = {} if isinstance(right, Ref) else {"other": freeze(right)}
        return [call.emit("floor_divide", args, **number, form=given["rounding_mode"])]
    attrs: dict[str, Attr] = {"alpha": alpha} if alpha is not None else {}
    if isinstance(left, Ref) and isinstance(right, Ref):
        args = [call.tensor(right), call.tensor(left)] if reverse else [call.tensor(left), call.tensor(right)]
        if kind in ("add", "mul") and {call.type(left).dtype, call.type(right).dtype} == {"bool"}:
            return [call.emit({"add": "logical_or", "mul": "logical_and"}[kind], args)]
        return [call.emit(kind, args, **attrs)]
    tensor, number = (left, right) if isinstance(left, Ref) else (right, left)
    reverse ^= not isinstance(left, Ref)
    return [call.emit(kind, [call.tensor(tensor)], other=freeze(number), reverse=reverse, **attrs)]


def _binary(call: Call) -> list[str]:
    kind = _BINARY[call.function]
    given = call.bind("input", "other", "alpha")
    if given["alpha"] not in (None, 1):
        raise Untranslatable(f"alpha={given['alpha']}")
    if isinstance(given["other"], Ref):
        return [call.emit(kind, [call.tensor(given["input"]), call.tensor(given["other"])])]
    return [call.emit(kind, [call.tensor(given["input"])], other=freeze(given["other"]))]


def _truth(call: Call, value: Any) -> str:
    """A tensor as booleans."""
    tensor = call.tensor(value)
    return tensor if call.type(value).dtype == "bool" else call.emit("cast", [tensor], dtype="bool", form="method")


def _negate(call: Call) -> list[str]:
    return [call.emit("logical_not", [_truth(call, call.args[0])])]


def _clamp(call: Call) -> list[str]:
    """Bounds are numbers or tensors."""
    side = {"clamp_min": ("min",), "clamp_max": ("max",)}.get(call.function.rstrip("_"), ("min", "max"))
    given = call.bind("input", *side)
    bounds = {name: given[name] for name in side if given[name] is not None}
    kind = "clamp_" if call.function.endswith("_") else "clamp"
    if not any(isinstance(bound, Ref) for bound in bounds.values()):
        return [call.emit(kind, [call.tensor(given["input"])], **bounds)]
    args = [call.tensor(value) for value in (given["input"], *bounds.values())]
    return [call.emit(kind, args, bound="max" if [*bounds] == ["max"] else "min")]


def _difference(call: Call) -> list[str]:
    given = call.bind("input", "n", "dim", "prepend")
    if given["n"] not in (None, 1):
        raise Untranslatable(f"n={given['n']}")
    args = [call.tensor(given[name]) for name in ("input", "prepend") if given[name] is not None]
    return [call.emit("diff", args, dim=-1 if given["dim"] is None else given["dim"])]


def _order(call: Call) -> list[str]:
    """The values and their places, each an operation."""
    options = ("k", "dim", "largest", "sorted") if call.function == "topk" else ("dim", "descending", "stable")
    given = call.bind("input", *options)
    attrs = {name: freeze(given[name]) for name in options if given[name] is not None}
    tensor = call.tensor(given["input"])
    return [call.emit(call.function, [tensor], **attrs, part=part) for part in ("values", "indices")]


def _where(call: Call) -> list[str]:
    given = call.bind("condition", "input", "other")
    if call.family == "Tensor":
        given = dict(zip(("input", "condition", "other"), given.values(), strict=True))
    left, right = given["input"], given["other"]
    args = [call.tensor(given["condition"]), *(call.tensor(side) for side in (left, right) if isinstance(side, Ref))]
    if len(args) != 2:
        return [call.emit("where", args, **({} if args[1:] else {"value": left, "other": right}))]
    number, tensor = (right, left) if isinstance(left, Ref) else (left, right)
    other = call.number(number, call.type(tensor))
    return [call.emit("where", args, other=other, reverse=tensor is right)]


def _reduction(call: Call) -> list[str]:
    kind = "norm" if call.function == "vector_norm" else call.function
    is_linalg = call.family == "linalg"
    order = ("ord" if is_linalg else "p") if kind == "norm" else ""
    names = (
        ("input", order, "dim", "keepdim") if order else ("input", "dim", "keepdim", "dtype", "correction", "unbiased")
    )
    if (
        kind in ("var", "std")
        and len(call.args) > 2
        and isinstance(call.args[2], bool)
        and "keepdim" not in call.kwargs
    ):
        names = ("input", "dim", "unbiased", "keepdim")
    given: dict[str, Any] = dict.fromkeys(("dtype", "correction", "unbiased")) | call.bind(*names)
    tensor, dim = (_truth if kind in ("any", "all") else Call.tensor)(call, given["input"]), given["dim"]
    attrs: dict[str, Attr] = {"form": "linalg"} if is_linalg else {}
    if is_linalg and call.function == "norm" and given[order] is not None and not isinstance(dim, int):
        raise Untranslatable("the norm of a matrix")
    if order and given[order] not in (None, "fro"):
        attrs["order"] = 2 if given[order] == 2 else given[order]
    if given.get("dtype") is not None:
        attrs["dtype"] = given["dtype"]["dtype"]
    if kind in ("var", "std"):
        unbiased, correction = given["unbiased"], given["correction"]
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        attrs["unbiased"] = bool(correction if correction is not None else unbiased is not False)
    if isinstance(dim, int):
        attrs["dim"] = dim
    else:
        attrs["axes"] = freeze(dim or [])
    return [call.emit(kind, [tensor], keepdim=bool(given["keepdim"]), **attrs)]


def _extreme(call: Call) -> list[str]:
    """The largest or smallest elements, along an axis with their places; or the larger or smaller of two tensors."""
    given = call.bind("input", "dim", "keepdim")
    kind, dim = call.function, given["dim"]
    if isinstance(dim, Ref):
        return [call.emit({"max": "maximum", "min": "minimum"}[kind], [call.tensor(given["input"]), call.tensor(dim)])]
    tensor = call.tensor(given["input"])
    if dim is None:
        return [call.emit(kind, [tensor], axes=())]
    keepdim = bool(given["keepdim"])
    places = call.emit(f"arg{kind}", [tensor], dim=dim, keepdim=keepdim)
    return [call.emit(kind, [tensor], dim=dim, keepdim=keepdim), places]


def _cast(call: Call) -> list[str]:
    if call.family != "Tensor":
        raise Untranslatable("")
    dtype = _CASTS[call.function]
    if call.type(call.args[0]).dtype == dtype:
        return [call.emit("to_own_dtype", [call.tensor(call.args[0])])]
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=dtype, form="method")]


def _to_dtype(call: Call) -> list[str]:
    words = [*call.args[1:], *call.kwargs.values()]
    wanted = [word["dtype"] for word in words if isinstance(word, dict) and "dtype" in word]
    wanted += [call.type(word).dtype for word in words if isinstance(word, Ref)]
    own = call.type(call.args[0]).dtype
    if not wanted or wanted[0] == own:
        return [call.emit("to_own_dtype", [call.tensor(call.args[0])])]
    if call.function == "type_as":
        return [call.emit("type_as", list(map(call.tensor, call.args)))]
    form = "type" if call.function == "type" else "to"
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=wanted[0], form=form)]


def _create(call: Call) -> list[str]:
    """A constant: `zeros`, `new_zeros`, `zeros_like` and so on. Zeros stand for `empty`: a later call writes them."""
    kind = call.function.replace("empty", "zeros")
    result = call.result
    attrs: dict[str, Attr] = {"dtype": result.dtype}
    args = [call.tensor(call.args[0])] if kind.startswith("new_") or kind.endswith("_like") else []
    if args and call.program.types[args[0]].dtype == result.dtype and "dtype" not in call.kwargs:
        attrs = {}
    if "full" in kind:
        value = call.kwargs.get("fill_value", call.args[-1] if call.args else None)
        attrs["value"] = call.number(freeze(value), TensorType((), result.dtype))
    return [call.emit(kind, args, **attrs, **({} if kind.endswith("_like") else {"sizes": result.shape}))]


def _scalar(call: Call) -> list[str]:
    result, value = call.result, call.args[0] if call.args else None
    if not result.shape:
        value = int(value) if isinstance(value, bool) else freeze(value)
        return [call.emit("scalar", [], value=value, dtype=result.dtype)]
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise Untranslatable("a list of fractions, or of lists")
    return [call.emit("numbers", [], values=freeze(value), dtype=result.dtype)]


def _as_tensor(call: Call) -> list[str]:
    """A tensor as it is, or with another dtype; else a constant."""
    return _to_dtype(call) if isinstance(call.args[0], Ref) else _scalar(call)


def _range(call: Call) -> list[str]:
    given = [*call.args, *(call.kwargs[name] for name in ("start", "end", "step") if name in call.kwargs)]
    start, stop, step = map(freeze, [0, given[0], 1] if len(given) == 1 else [*given, 1][:3])
    # Whole numbers may be sizes.
    start, stop, step = (int(number) if number == int(number) else number for number in (start, stop, step))
    return [call.emit("arange", [], start=start, stop=stop, step=step, dtype=call.result.dtype)]


def _grid(call: Call) -> list[str]:
    given, (steps,) = call.bind("start", "end", "steps"), call.result.shape
    return [call.emit("linspace", [], start=given["start"], stop=given["end"], steps=steps, dtype=call.result.dtype)]


def _identity(call: Call) -> list[str]:
    rows, columns = call.result.shape
    return [call.emit("eye", [], rows=rows, columns=None if columns == rows else columns, dtype=call.result.dtype)]


READERS: dict[str, Reader] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_CASTS, _cast),
    "logical_not": _negate,
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("to", "type", "type_as"), _to_dtype),
    **{f"{how}{kind}": _create for kind in ("zeros", "ones", "full", "empty") for how in ("", "new_")},
    **{f"{kind}_like": _create for kind in ("zeros", "ones", "full", "empty")},
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("clamp_", "clip_", "clamp_min_", "clamp_max_"), _clamp),
    **dict.fromkeys(("topk", "sort"), _order),
    "diff": _difference,
    "where": _where,
    **dict.fromkeys(("tensor", "scalar_tensor"), _scalar),
    **dict.fromkeys(("as_tensor", "asarray"), _as_tensor),
    "arange": _range,
    "linspace": _grid,
    "eye": _identity,
}
"""By the last part of the function's name."""
