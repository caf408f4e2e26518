"""Reads arithmetic of two arguments, norms of vectors, casts and constants."""

from typing import Any

from fuzz.importing.call import ImportedCall, Reader, TensorNumber, freeze
from fuzz.importing.program import Untranslatable
from generators.program.case import Attr, TensorType

_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div"}
_ARITHMETIC |= {"true_divide": "div", "subtract": "sub", "__truediv__": "div"}
_REVERSED = {"__rsub__": "sub", "rsub": "sub", "__rtruediv__": "div", "__rdiv__": "div"}
_ARITHMETIC |= _REVERSED
_CASTS = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "bool": "bool"}
_CASTS |= {"int": "int32", "long": "int64", "byte": "uint8", "char": "int8", "short": "int16"}


def _arithmetic(call: ImportedCall) -> list[str]:
    kind, reverse = _ARITHMETIC[call.function], call.function in _REVERSED
    left, right, alpha, rounding = map(call.take, ("input", "other", "alpha", "rounding_mode"))
    tensors = [side for side in (left, right) if isinstance(side, TensorNumber)]
    if rounding is not None:
        number = {} if tensors[1:] else {"other": freeze(right)}
        return [call.emit("floor_divide", [*map(call.tensor, tensors)], **number, form=rounding)]
    attrs: dict[str, Attr] = {"alpha": alpha} if alpha is not None else {}
    if not tensors[1:]:
        number = left if right in tensors else right
        reverse ^= right in tensors
        return [call.emit(kind, [*map(call.tensor, tensors)], other=freeze(number), reverse=reverse, **attrs)]
    args = [call.tensor(side) for side in (tensors[::-1] if reverse else tensors)]
    if kind in ("add", "mul") and {call.program.types[name].dtype for name in args} == {"bool"}:
        return [call.emit({"add": "logical_or", "mul": "logical_and"}[kind], args)]
    return [call.emit(kind, args, **attrs)]


def _where(call: ImportedCall) -> list[str]:
    condition, left, right = (call.take(name) for name in ("condition", "input", "other"))
    args = [call.tensor(side) for side in (condition, left, right) if isinstance(side, TensorNumber)]
    if len(args) != 2:
        return [call.emit("where", args, **({} if args[1:] else {"value": left, "other": right}))]
    number, tensor = (right, left) if isinstance(left, TensorNumber) else (left, right)
    other = call.number(number, call.type(tensor))
    return [call.emit("where", args, other=other, reverse=tensor is right)]


def _clamp(call: ImportedCall) -> list[str]:
    is_below = call.given.get("min") is None and isinstance(call.given.get("max"), TensorNumber)
    return call.read(**({"bound": "max"} if is_below else {}))


def _find_extreme(call: ImportedCall) -> list[str]:
    """The larger or smaller of two tensors; or of a tensor's elements, with their places if along an axis."""
    if "other" in call.given:
        return call.read(kind=f"{call.function}imum")
    return call.read(kind=call.function, second=f"arg{call.function}" if call.record.results[1:] else "")


def _negate(call: ImportedCall) -> list[str]:
    tensor = call.take("input")
    is_bool = call.type(tensor).dtype == "bool"
    name = call.tensor(tensor)
    return call.read(name if is_bool else call.emit("cast", [name], dtype="bool", form="method"))


def _norm(call: ImportedCall) -> list[str]:
    order = call.take("ord") if call.family == "linalg" else call.take("p")
    is_of_matrix = (call.family, call.function) == ("linalg", "norm") and not isinstance(call.given.get("dim"), int)
    if is_of_matrix and order is not None:
        raise Untranslatable("the norm of a matrix")
    return call.read(kind="norm", order=2 if order in (None, "fro", 2) else freeze(order))


def _cast(call: ImportedCall) -> list[str]:
    if call.family != "Tensor":
        raise Untranslatable("")
    return _cast_to(call, _CASTS[call.function], "method")


def _to_dtype(call: ImportedCall) -> list[str]:
    """A tensor as it is, with another dtype, or with the dtype of another tensor."""
    tensor, *words = call.take_rest()
    if call.function == "type_as" and call.type(tensor).dtype != call.type(words[0]).dtype:
        return [call.emit("type_as", [call.tensor(tensor), call.tensor(words[0])])]
    call.given["input"] = tensor
    wanted = [word["dtype"] for word in words if isinstance(word, dict) and "dtype" in word]
    wanted += [call.type(word).dtype for word in words if isinstance(word, TensorNumber)]
    return _cast_to(call, next(iter(wanted), ""), "type" if call.function == "type" else "to")


def _cast_to(call: ImportedCall, dtype: str, form: str) -> list[str]:
    tensor = call.take("input")
    if dtype in ("", call.type(tensor).dtype):
        return [call.emit("to_own_dtype", [call.tensor(tensor)])]
    return [call.emit("cast", [call.tensor(tensor)], dtype=dtype, form=form)]


def _create(call: ImportedCall) -> list[str]:
    """A constant: `zeros`, `new_zeros`, `zeros_like` and so on. Zeros stand for `empty`: a later call writes them."""
    kind, result = call.function.replace("empty", "zeros"), call.result
    is_like = isinstance(call.given.get("input"), TensorNumber) and "dtype" not in call.given
    is_own = is_like and call.type(call.given["input"]).dtype == result.dtype
    attrs: dict[str, Any] = {} if is_own else {"dtype": result.dtype}
    if "full" in kind:
        attrs["value"] = call.number(freeze(call.take("fill_value")), TensorType((), result.dtype))
    if not kind.endswith("_like"):
        attrs["sizes"] = result.shape
    return call.read(kind=kind, **attrs)


def _scalar(call: ImportedCall) -> list[str]:
    result, (value, *_) = call.result, call.take_rest()
    if not result.shape:
        value = int(value) if isinstance(value, bool) else freeze(value)
        return [call.emit("scalar", [], value=value, dtype=result.dtype)]
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise Untranslatable("a list of fractions, or of lists")
    return [call.emit("numbers", [], values=freeze(value), dtype=result.dtype)]


def _as_tensor(call: ImportedCall) -> list[str]:
    """A tensor as it is, or with another dtype; else a constant."""
    return _to_dtype(call) if isinstance(next(iter(call.given.values())), TensorNumber) else _scalar(call)


def _count(call: ImportedCall) -> list[str]:
    if call.function == "arange":  # whole numbers may be sizes
        bounds = {name: value for name, value in call.given.items() if name in ("start", "end", "step")}
        call.given |= {name: int(value) for name, value in bounds.items() if value == int(value)}
    return call.read(dtype=call.result.dtype)


READERS: dict[str, Reader] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **{f"{name}{ending}": _clamp for name in ("clamp", "clip", "clamp_max") for ending in ("", "_")},
    **dict.fromkeys(("max", "min"), _find_extreme),
    "logical_not": _negate,
    **dict.fromkeys(("norm", "vector_norm"), _norm),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(("to", "type", "type_as"), _to_dtype),
    **{f"{how}{kind}": _create for kind in ("zeros", "ones", "full", "empty") for how in ("", "new_")},
    **{f"{kind}_like": _create for kind in ("zeros", "ones", "full", "empty")},
    "where": _where,
    **dict.fromkeys(("tensor", "scalar_tensor"), _scalar),
    **dict.fromkeys(("as_tensor", "asarray"), _as_tensor),
    **dict.fromkeys(("arange", "linspace", "eye"), _count),
}
"""By the last part of the function's name."""
