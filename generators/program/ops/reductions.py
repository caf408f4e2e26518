"""Reductions over axes, and running sums."""

from collections.abc import Mapping
from functools import partial

from generators.errors import require
from generators.program.ops.rules import distinct_axes, is_bool, with_axis
from generators.program.ops.spec import Attribute, Kind, Line, Operands, OpSpec, flag, word
from generators.program.sizes import ONE, Size
from generators.program.values import category

_EACH = frozenset({"sum", "mean", "amax", "amin", "logsumexp", "norm", "var", "std", "any", "all"})
"""Reductions that take several axes."""


def _reduce(call: Operands, kind: str) -> tuple[Size, ...]:
    """The shape without `dim`, or without `axes`; `axes: []` are all of them."""
    axes, keepdim = call.attrs["axes"], call.attrs["keepdim"]
    if axes is None:
        reduced = {call.axis()}
    else:
        reduced = distinct_axes(call, axes)
        require(call.attrs["dim"] == -1, "takes dim or axes, not both")
        require(kind in _EACH or not axes, f"{kind} takes one axis, or all: axes []")
        require(bool(axes) or not (keepdim or kind == "logsumexp"), "needs axes")
        reduced = reduced or set(range(len(call.shape)))
    kept = (ONE,) if keepdim else ()
    parts = (kept if axis in reduced else (size,) for axis, size in enumerate(call.shape))
    return tuple(size for part in parts for size in part)


def _sum_dtype(call: Operands) -> str:
    own = call.args[0].dtype
    return own if category(own) == 2 else "int64"


def _product_dtype(call: Operands) -> str:
    own = _sum_dtype(call)
    return "float32" if call.autocast and own in ("bfloat16", "float16") else own


def _text(line: Line) -> str:
    axes, form = line.attrs["axes"], line.attrs.get("form")
    words = [line.fill("dim={dim}")] if axes is None else [f"dim=({line.text('axes')},)"] if axes else []
    words += ["unbiased=False"] if line.attrs.get("unbiased") is False else []
    words += line.options("keepdim")
    if form == "linalg":
        return f"torch.linalg.vector_norm({', '.join([*line.args, *words])})"
    ending = {"values": ".values", "item": "[0]"}.get(form or "", "") if axes is None else ""
    return f"{line.args[0]}.{line.kind}({', '.join(words)}){ending}"


_REDUCE = {"dim": Attribute(Kind.AXIS, -1), "axes": Attribute(Kind.AXES), "keepdim": flag()}
_SPREAD = {**_REDUCE, "unbiased": flag(default=True)}
_NORM, _EXTREME = {**_REDUCE, "form": word("method", "linalg")}, {**_REDUCE, "form": word("values", "item")}
_ALONG = {"dim": _REDUCE["dim"]}


def _row(kind: str, attributes: Mapping[str, Attribute] = _REDUCE, **rules: object) -> OpSpec:
    return OpSpec(kind, partial(_reduce, kind=kind), text=_text, attributes=attributes, **rules)  # type: ignore[arg-type]


OPS = [
    _row("sum", dtype=_sum_dtype, saves=False),
    _row("mean", takes="float", saves=False),
    _row("prod", dtype=_product_dtype),
    *(_row(kind) for kind in ("amax", "amin")),
    *(_row(kind, _EXTREME, cost=2) for kind in ("max", "min")),
    *(_row(kind, takes="number", dtype=lambda _: "int64", saves=False) for kind in ("argmax", "argmin")),
    *(_row(kind, takes="bool", dtype=is_bool) for kind in ("any", "all")),
    _row("logsumexp", takes="float"),
    _row("norm", _NORM, takes="float"),
    *(_row(kind, _SPREAD, takes="float") for kind in ("var", "std")),
    OpSpec("cumsum", with_axis, _sum_dtype, text="{0}.cumsum(dim={dim})", attributes=_ALONG, saves=False),
]
