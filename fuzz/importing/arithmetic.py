"""Reads arithmetic, comparisons, reductions, casts and constants."""

from fuzz.importing.call import Call, Reader, Ref, Untranslatable, freeze
from generators.program.case import Attr, TensorType

_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div"}
_ARITHMETIC |= {"true_divide": "div", "subtract": "sub", "__truediv__": "div"}
_REVERSED = {"__rsub__": "sub", "rsub": "sub", "__rtruediv__": "div", "__rdiv__": "div"}
_ARITHMETIC |= _REVERSED
_BINARY = {"add_": "add_", "mul_": "mul_", "__iadd__": "add_", "__imul__": "mul_"}
_BINARY |= {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_BINARY |= {f"__{name}__": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_BINARY |= {"__floordiv__": "floor_divide", "floor_divide": "floor_divide", "remainder": "remainder"}
_CASTS = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "bool": "bool"}
_CASTS |= {"int": "int32", "long": "int64"}
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


def _power(call: Call) -> list[str]:
    given = call.bind("input", "exponent")
    if isinstance(given["exponent"], Ref) or not isinstance(given["input"], Ref):
        raise Untranslatable("a tensor as exponent")
    return [call.emit("pow", [call.tensor(given["input"])], exponent=given["exponent"])]


def _where(call: Call) -> list[str]:
    given = call.bind("condition", "input", "other")
    if call.family == "Tensor":
        given = dict(zip(("input", "condition", "other"), given.values(), strict=True))
    condition, left, right = call.tensor(given["condition"]), given["input"], given["other"]
    if isinstance(left, Ref) and isinstance(right, Ref):
        return [call.emit("where", [condition, call.tensor(left), call.tensor(right)])]
    if isinstance(left, Ref):
        return [call.emit("where", [condition, call.tensor(left)], other=call.number(right, call.type(left)))]
    if isinstance(right, Ref):
        other = call.number(left, call.type(right))
        return [call.emit("where", [condition, call.tensor(right)], other=other, reverse=True)]
    return [call.emit("where", [condition], value=left, other=right)]


def _reduction(call: Call) -> list[str]:
    kind = "norm" if call.function == "vector_norm" else call.function
    order = {"norm": "p", "vector_norm": "ord"}.get(call.function, "")
    names = (
        ("input", order, "dim", "keepdim") if order else ("input", "dim", "keepdim", "dtype", "correction", "unbiased")
    )
    given = call.bind(*names)
    if order and given[order] not in (None, 2, 2.0, "fro"):
        raise Untranslatable(f"order {given[order]}")
    tensor, dim = call.tensor(given["input"]), given["dim"]
    if given.get("dtype") is not None:
        tensor = call.emit("cast", [tensor], dtype=given["dtype"]["dtype"], form="to")
    attrs: dict[str, Attr] = {"form": "linalg"} if call.function == "vector_norm" else {}
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
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=_CASTS[call.function], form="method")]


def _to_dtype(call: Call) -> list[str]:
    words = [*call.args[1:], *call.kwargs.values()]
    wanted = [word["dtype"] for word in words if isinstance(word, dict) and "dtype" in word]
    wanted += [call.type(word).dtype for word in words if isinstance(word, Ref)]
    own = call.type(call.args[0]).dtype
    if not wanted or wanted[0] == own:
        return [call.emit("to_own_dtype", [call.tensor(call.args[0])])]
    form = "type" if call.function == "type" else "to"
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=wanted[0], form=form)]


def _create(call: Call) -> list[str]:
    """A constant: `zeros`, `new_zeros`, `zeros_like` and so on."""
    kind = call.function
    result = call.program.recorded.tensors[call.record.results[0]]
    attrs: dict[str, Attr] = {"dtype": result.dtype}
    args = [call.tensor(call.args[0])] if kind.startswith("new_") or kind.endswith("_like") else []
    if args and call.program.types[args[0]].dtype == result.dtype and "dtype" not in call.kwargs:
        attrs = {}
    if "full" in kind:
        value = call.kwargs.get("fill_value", call.args[-1] if call.args else None)
        attrs["value"] = call.number(freeze(value), TensorType((), result.dtype))
    return [call.emit(kind, args, **attrs, **({} if kind.endswith("_like") else {"sizes": result.shape}))]


def _scalar(call: Call) -> list[str]:
    result, value = call.program.recorded.tensors[call.record.results[0]], call.args[0] if call.args else None
    if result.shape:
        raise Untranslatable("a list of numbers")
    return [call.emit("scalar", [], value=freeze(value), dtype=result.dtype)]


def _range(call: Call) -> list[str]:
    given = [*call.args, *(call.kwargs[name] for name in ("start", "end", "step") if name in call.kwargs)]
    start, stop, step = [0, given[0], 1] if len(given) == 1 else [*given, 1][:3]
    dtype = call.program.recorded.tensors[call.record.results[0]].dtype
    if not all(type(number) is int for number in (start, stop, step)) or step < 1:
        raise Untranslatable("a range of other than whole numbers")
    whole = call.emit("arange", [], start=start, stop=stop, dtype=dtype)
    return [whole if step == 1 else call.emit("narrow", [whole], dim=0, start=0, stop=stop - start, step=step)]


READERS: dict[str, Reader] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(("pow", "__pow__"), _power),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("to", "type"), _to_dtype),
    **{f"{how}{kind}": _create for kind in ("zeros", "ones", "full") for how in ("", "new_")},
    **{f"{kind}_like": _create for kind in ("zeros", "ones", "full")},
    "where": _where,
    "tensor": _scalar,
    "arange": _range,
}
"""By the last part of the function's name."""
