"""Reads arithmetic of two arguments, norms of vectors, casts and constants."""

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
    given = call.bind("input", "other", "alpha", "rounding_mode")
    left, right, alpha = given["input"], given["other"], given["alpha"]
    if given["rounding_mode"] is not None:
        args = [call.tensor(side) for side in (left, right) if isinstance(side, TensorNumber)]
        number = {} if isinstance(right, TensorNumber) else {"other": freeze(right)}
        return [call.emit("floor_divide", args, **number, form=given["rounding_mode"])]
    attrs: dict[str, Attr] = {"alpha": alpha} if alpha is not None else {}
    if isinstance(left, TensorNumber) and isinstance(right, TensorNumber):
        args = [call.tensor(right), call.tensor(left)] if reverse else [call.tensor(left), call.tensor(right)]
        if kind in ("add", "mul") and {call.type(left).dtype, call.type(right).dtype} == {"bool"}:
            return [call.emit({"add": "logical_or", "mul": "logical_and"}[kind], args)]
        return [call.emit(kind, args, **attrs)]
    tensor, number = (left, right) if isinstance(left, TensorNumber) else (right, left)
    reverse ^= not isinstance(left, TensorNumber)
    return [call.emit(kind, [call.tensor(tensor)], other=freeze(number), reverse=reverse, **attrs)]


def _where(call: ImportedCall) -> list[str]:
    given = call.bind("condition", "input", "other")
    if call.family == "Tensor":
        given = dict(zip(("input", "condition", "other"), given.values(), strict=True))
    left, right = given["input"], given["other"]
    args = [
        call.tensor(given["condition"]),
        *(call.tensor(side) for side in (left, right) if isinstance(side, TensorNumber)),
    ]
    if len(args) != 2:
        return [call.emit("where", args, **({} if args[1:] else {"value": left, "other": right}))]
    number, tensor = (right, left) if isinstance(left, TensorNumber) else (left, right)
    other = call.number(number, call.type(tensor))
    return [call.emit("where", args, other=other, reverse=tensor is right)]


def _vector_norm(call: ImportedCall) -> list[str]:
    given = call.bind("input", "p", "dim", "keepdim")
    order = None if given["p"] == "fro" else given["p"]
    is_of_matrix = (call.family, call.function) == ("linalg", "norm") and not isinstance(given["dim"], int)
    if is_of_matrix and given["p"] is not None:
        raise Untranslatable("the norm of a matrix")
    return call.read(order=2 if order is None or order == 2 else freeze(order))


def _cast(call: ImportedCall) -> list[str]:
    if call.family != "Tensor":
        raise Untranslatable("")
    dtype = _CASTS[call.function]
    if call.type(call.args[0]).dtype == dtype:
        return [call.emit("to_own_dtype", [call.tensor(call.args[0])])]
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=dtype, form="method")]


def _to_dtype(call: ImportedCall) -> list[str]:
    words = [*call.args[1:], *call.kwargs.values()]
    wanted = [word["dtype"] for word in words if isinstance(word, dict) and "dtype" in word]
    wanted += [call.type(word).dtype for word in words if isinstance(word, TensorNumber)]
    own = call.type(call.args[0]).dtype
    if not wanted or wanted[0] == own:
        return [call.emit("to_own_dtype", [call.tensor(call.args[0])])]
    if call.function == "type_as":
        return [call.emit("type_as", list(map(call.tensor, call.args)))]
    form = "type" if call.function == "type" else "to"
    return [call.emit("cast", [call.tensor(call.args[0])], dtype=wanted[0], form=form)]


def _create(call: ImportedCall) -> list[str]:
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


def _scalar(call: ImportedCall) -> list[str]:
    result, value = call.result, call.args[0] if call.args else None
    if not result.shape:
        value = int(value) if isinstance(value, bool) else freeze(value)
        return [call.emit("scalar", [], value=value, dtype=result.dtype)]
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise Untranslatable("a list of fractions, or of lists")
    return [call.emit("numbers", [], values=freeze(value), dtype=result.dtype)]


def _as_tensor(call: ImportedCall) -> list[str]:
    """A tensor as it is, or with another dtype; else a constant."""
    return _to_dtype(call) if isinstance(call.args[0], TensorNumber) else _scalar(call)


def _range(call: ImportedCall) -> list[str]:
    given = [*call.args, *(call.kwargs[name] for name in ("start", "end", "step") if name in call.kwargs)]
    start, stop, step = map(freeze, [0, given[0], 1] if len(given) == 1 else [*given, 1][:3])
    # Whole numbers may be sizes.
    start, stop, step = (int(number) if number == int(number) else number for number in (start, stop, step))
    return [call.emit("arange", [], start=start, stop=stop, step=step, dtype=call.result.dtype)]


def _grid(call: ImportedCall) -> list[str]:
    given, (steps,) = call.bind("start", "end", "steps"), call.result.shape
    return [call.emit("linspace", [], start=given["start"], stop=given["end"], steps=steps, dtype=call.result.dtype)]


def _identity(call: ImportedCall) -> list[str]:
    rows, columns = call.result.shape
    return [call.emit("eye", [], rows=rows, columns=None if columns == rows else columns, dtype=call.result.dtype)]


READERS: dict[str, Reader] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(("norm", "vector_norm"), _vector_norm),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(("to", "type", "type_as"), _to_dtype),
    **{f"{how}{kind}": _create for kind in ("zeros", "ones", "full", "empty") for how in ("", "new_")},
    **{f"{kind}_like": _create for kind in ("zeros", "ones", "full", "empty")},
    "where": _where,
    **dict.fromkeys(("tensor", "scalar_tensor"), _scalar),
    **dict.fromkeys(("as_tensor", "asarray"), _as_tensor),
    "arange": _range,
    "linspace": _grid,
    "eye": _identity,
}
"""By the last part of the function's name."""
