"""Reductions over axes, running sums, differences, and sorting."""

from collections.abc import Mapping
from functools import partial

from generators.errors import require
from generators.program.ops.rules import along, distinct_axes, made_floating, promote_all, with_axis
from generators.program.ops.shaping import concatenate
from generators.program.ops.spec import Attribute, Kind, Line, Operands, OpSpec, flag, word
from generators.program.sizes import ONE, Size
from generators.program.values import COMPLEX, DTYPES, FLOATS, INTEGERS, LOW_PRECISION, category
from generators.reasons import Reason

_EACH = frozenset({"sum", "mean", "amax", "amin", "logsumexp", "norm", "var", "std", "any", "all"})
_EACH |= {"nansum", "nanmean", "count_nonzero"}
"""Reductions that take several axes."""


def _reduce(call: Operands, kind: str) -> tuple[Size, ...]:
    """The shape without `dim`, or without `axes`; `axes: []` are all of them."""
    axes, keepdim = call.attrs["axes"], call.attrs.get("keepdim", False)
    require(call.attrs.get("order", 2) > 0, "the order of a norm is positive")
    if axes is None:
        reduced = {call.axis()}
    else:
        reduced = distinct_axes(call, axes)
        require(call.attrs["dim"] == -1, "takes dim or axes, not both", Reason.SPELLING)
        require(kind in _EACH or not axes, f"{kind} takes one axis, or all: axes []")
        require(bool(axes) or not (keepdim or kind == "logsumexp"), "needs axes")
        is_of_matrix = kind == "norm" and call.attrs["form"] == "method" and call.attrs["order"] == 2
        require(not is_of_matrix or len(axes) < 3, "the method norm takes at most two axes without another order")
        reduced = reduced or set(range(len(call.shape)))
    kept = (ONE,) if keepdim else ()
    parts = (kept if axis in reduced else (size,) for axis, size in enumerate(call.shape))
    return tuple(size for part in parts for size in part)


def _sum_dtype(call: Operands) -> str:
    own, given = call.args[0].dtype, call.attrs["dtype"]
    require(own != COMPLEX or not given, f"{COMPLEX} keeps its dtype")
    return given or (own if category(own) > 1 else "int64")


def _truth_dtype(call: Operands) -> str:
    """bool; uint8 of uint8, "for compatibility" (https://docs.pytorch.org/docs/stable/generated/torch.any.html)."""
    return "uint8" if call.args[0].dtype == "uint8" else "bool"


def _extreme_dtype(call: Operands) -> str:
    require(call.attrs["axes"] is None or call.attrs["form"] == "values", "all elements have no places")
    return "int64" if call.attrs["form"] == "indices" else call.args[0].dtype


def _mean_dtype(call: Operands) -> str:
    dtype = str(call.attrs["dtype"] or call.args[0].dtype)
    require(category(dtype) > 1, f"needs a floating-point argument or a floating dtype, got {dtype}")
    require(call.args[0].dtype != COMPLEX or not call.attrs["dtype"], f"{COMPLEX} keeps its dtype")
    return dtype


def _product_dtype(call: Operands) -> str:
    own, casts = _sum_dtype(call), call.autocast and call.attrs["dtype"] is None
    return "float32" if casts and own in LOW_PRECISION else own


def _text(line: Line) -> str:
    axes, form = (line.attrs.get(name) for name in ("axes", "form"))
    words = [line.fill("dim={dim}")] if axes is None else [f"dim=({line.text('axes')},)"] if axes else []
    words += line.options("unbiased", "keepdim", "dtype")
    if line.attrs.get("order", 2) != 2:
        words.insert(0, line.fill("ord={order}" if form == "linalg" else "p={order}"))
    if form == "linalg":
        return f"torch.linalg.vector_norm({', '.join([*line.args, *words])})"
    ending = _ENDINGS.get(form or "", "") if axes is None or line.kind == "aminmax" else ""
    return f"{line.args[0]}.{line.kind}({', '.join(words)}){ending}"


def _subtract_neighbours(call: Operands) -> tuple[Size, ...]:
    shape, axis = concatenate(call), call.axis()
    require(shape[axis].value(call.dims) > 0, "needs an element")
    return (*shape[:axis], shape[axis] - ONE, *shape[axis + 1 :])


def _difference_text(line: Line) -> str:
    x, *before = line.args
    return f"torch.diff({', '.join([x, line.fill('dim={dim}'), *(f'prepend={item}' for item in before)])})"


def _count_in_bins(call: Operands) -> tuple[Size]:
    require(call.attrs["bins"] >= 1 and call.attrs["min"] < call.attrs["max"], "needs a bin and a range")
    return (Size.of(call.attrs["bins"]),)


def _take_first(call: Operands, whole: Size) -> tuple[Size]:
    count, length = call.numbers((call.attrs["k"], whole))
    require(0 <= count <= length, f"k is {count} of an axis of {length}")
    return (call.attrs["k"],)


def _part_dtype(call: Operands) -> str:
    return "int64" if call.attrs.get("part", "indices") == "indices" else call.args[0].dtype


def _sort_text(line: Line) -> str:
    words = line.options("k", "dim", "descending", "stable", "largest", "sorted")
    part = line.fill(".{part}") if "part" in line.attrs else ""
    return f"{line.args[0]}.{line.kind}({', '.join(words)}){part}"


_REDUCE = {"dim": Attribute(Kind.AXIS, -1), "axes": Attribute(Kind.AXES), "keepdim": flag()}
_SPREAD = {**_REDUCE, "unbiased": flag(default=True)}
_NORM = {**_REDUCE, "order": Attribute(Kind.NUMBER, 2), "form": word("method", "linalg")}
_COUNT = {name: _REDUCE[name] for name in ("dim", "axes")}
_ENDINGS = {"values": ".values", "item": "[0]", "indices": ".indices", "min": ".min", "max": ".max"}
_EXTREME = {**_REDUCE, "form": word("values", "item", "indices")}
_MIDDLE = {**_REDUCE, "form": word("values", "indices")}
_ALONG, _DTYPE = {"dim": _REDUCE["dim"]}, {"dtype": Attribute(Kind.WORD, None, DTYPES)}
_NUMBERS = {"dtype": Attribute(Kind.WORD, None, (*FLOATS, *INTEGERS))}
_BINS = {"bins": Attribute(Kind.INT, required=True), "min": Attribute(Kind.NUMBER, 0)}
_BINS |= {"max": Attribute(Kind.NUMBER, required=True)}
_ORDER, _PART = {**_ALONG, "descending": flag(), "stable": flag()}, {"part": word("values", "indices")}
_RUNNING = {**_ALONG, **_PART}
_FIRST = {"k": Attribute(Kind.SIZE, required=True), **_ALONG, "largest": flag(default=True)}
_FIRST |= {"sorted": flag(default=True), **_PART}


def _row(kind: str, attributes: Mapping[str, Attribute] = _REDUCE, **rules: object) -> OpSpec:
    return OpSpec(kind, partial(_reduce, kind=kind), text=_text, attributes=attributes, **rules)  # type: ignore[arg-type]


OPS = [
    _row("sum", _REDUCE | _DTYPE, takes="all", dtype=_sum_dtype, saves=False),
    _row("mean", _REDUCE | _DTYPE, takes="all", dtype=_mean_dtype, saves=False),
    _row("prod", _REDUCE | _DTYPE, dtype=_product_dtype),
    *(_row(kind) for kind in ("amax", "amin")),
    *(_row(kind, _EXTREME, dtype=_extreme_dtype, cost=2) for kind in ("max", "min")),
    *(_row(kind, _MIDDLE, takes="number", dtype=_extreme_dtype, cost=2) for kind in ("median", "nanmedian")),
    _row("aminmax", {**_REDUCE, "form": word("min", "max")}, cost=2),
    *(_row(kind, takes="number", dtype="int64", saves=False) for kind in ("argmax", "argmin")),
    *(_row(kind, dtype=_truth_dtype, saves=False) for kind in ("any", "all")),
    _row("count_nonzero", _COUNT, dtype="int64", saves=False),
    _row("nansum", _REDUCE | _DTYPE, dtype=_sum_dtype, cost=2),
    _row("nanmean", _REDUCE | _DTYPE, takes="float", dtype=_mean_dtype, cost=2),
    _row("logsumexp", dtype=made_floating),
    _row("norm", _NORM, takes="float"),
    *(_row(kind, _SPREAD, takes="float") for kind in ("var", "std")),
    OpSpec("cumsum", with_axis, _sum_dtype, text=_text, attributes=_ALONG | _NUMBERS, saves=False),
    OpSpec("cumprod", with_axis, _sum_dtype, text=_text, attributes=_ALONG | _NUMBERS),
    OpSpec("logcumsumexp", with_axis, takes="float", text=_text, attributes=_ALONG, cost=2),
    *(OpSpec(kind, with_axis, _part_dtype, text=_sort_text, attributes=_RUNNING) for kind in ("cummax", "cummin")),
    OpSpec("diff", _subtract_neighbours, promote_all, "any", _difference_text, _ALONG, arity=(1, 2), saves=False),
    OpSpec(
        "histc",
        _count_in_bins,
        takes="float",
        text="torch.histc({0}, bins={bins}, min={min}, max={max})",
        attributes=_BINS,
        saves=False,
    ),
    OpSpec("topk", along(_take_first), _part_dtype, "number", _sort_text, _FIRST),
    *(
        OpSpec(kind, with_axis, _part_dtype, text=_sort_text, attributes=attributes)
        for kind, attributes in (("sort", _ORDER | _PART), ("argsort", _ORDER))
    ),
]
