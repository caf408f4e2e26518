"""Reductions in every mode, and convolutions, pooling and interpolation, on a value of a program."""

from collections.abc import Mapping, Sequence
from typing import Any

from generators.errors import require
from generators.program.case import Values
from generators.program.ops import OPS
from generators.program.sizes import ONE, Size
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_any_layout

_REDUCTIONS = {
    **dict.fromkeys(("sum", "mean"), 4.0),
    **dict.fromkeys(("amax", "amin", "logsumexp", "norm", "var", "std", "prod", "cumsum"), 2.0),
    **dict.fromkeys(("max", "min", "diff"), 1.0),
}
_SEVERAL = frozenset({"sum", "mean", "amax", "amin", "logsumexp", "norm", "var", "std", "any", "all", "nansum"})
_SEVERAL |= {"count_nonzero"}
"""Reductions that take several axes."""
_ORDERS = (1, 3, 0.5, 2.0, 4)
_OWN_DTYPE_SHARE = 0.5  # the share of reductions with a dtype of their own


def reduce(b: Builder, c: Choices, value: str, kinds: Mapping[str, float]) -> str:
    """One of these reductions, over one axis, counted from either end, over several, or over all."""
    kind, rank, own = c.draw(kinds), b.rank(value), b.dtype_of(value)
    require(rank > 0, "needs an axis")
    rows, attrs = OPS[kind].attributes, dict[str, Any](dim=c.below(rank) - c.pick((0, rank)))
    how = c.draw({"axis": 5.0, "several": 4.0 * (kind in _SEVERAL), "all": 1.0 * ("axes" in rows)})
    if how != "axis":
        axes = c.subset(range(rank), 0.6) or [0]
        attrs = {"axes": tuple(axis - c.pick((0, rank)) for axis in axes) if how == "several" else ()}
    if "keepdim" in rows and how != "all":
        attrs["keepdim"] = c.chance(0.5)
    if "dtype" in rows and c.chance(_OWN_DTYPE_SHARE):
        # torch does not define casts of large numbers and NaN to integers.
        more = (
            ("float32", "float64")
            if b.is_float(value) or kind == "mean"
            else ("float32", "int64", "int32", own, own, own)
        )
        attrs["dtype"] = c.pick([name for name in more if name != "bool"])
    elif kind == "mean" and not b.is_float(value):
        attrs["dtype"] = "float32"
    if "form" in rows:
        attrs["form"] = c.pick(rows["form"].words)
    if "unbiased" in rows:
        attrs["unbiased"] = c.chance(0.6)
    if "order" in rows:
        attrs["order"] = c.pick(_ORDERS)
    return b.op(kind, value, to="reduced", **attrs)


def write_reduction(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """A reduction in any mode."""
    return reduce(b, c, value, _REDUCTIONS)


_WINDOWS = {"conv": 4.0, "conv_transpose": 2.0, "max_pool": 2.0, "avg_pool": 2.0, "adaptive_avg_pool": 1.5}
_WINDOWS |= {"interpolate": 4.0}
_SMOOTH = {3: ("linear",), 4: ("bilinear", "bicubic")}
_MOST_CHANNELS = 64


def write_window(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """A convolution, a pooling or an interpolation of a value of two to four axes: [batch, channels, ...]."""
    require(b.is_float(value) and 2 <= b.rank(value) <= 4, "needs two to four axes")
    x = b.op("unsqueeze", value, to="image", dim=c.pick((0, 1))) if b.rank(value) == 2 else value
    kind = c.draw(_WINDOWS)
    return _interpolate(b, c, x) if kind == "interpolate" else _slide(b, c, x, kind)


_PLACES = ("argmax", "argmin", "max", "min", "max_pool", "max_pool", "adaptive_max_pool", "adaptive_avg_pool")


def write_places(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - a `Writer`
    """The places of largest or smallest values, or pooled values, of a tensor that lies in memory in another order."""
    shape, kind = b.shape(value), c.pick(_PLACES)
    while "pool" in kind and len(shape) < 4 and c.chance(0.8 if len(shape) == 3 else 1.0):
        shape = (*shape[:-1], Size.of(c.pick((2, 3, 5))), shape[-1])
    x = b.input("image", shape, dtype=b.dtype_of(value), layout=draw_any_layout(c, len(shape)))
    x = b.op("mul", x, to="scaled", other=2.0) if c.chance(0.4) else x
    return _slide(b, c, x, kind, ("values", "indices", "indices")) if "pool" in kind else reduce(b, c, x, {kind: 1.0})


def _slide(b: Builder, c: Choices, x: str, kind: str, parts: Sequence[str] = ()) -> str:
    """A convolution, or a pooling of which one of these parts is read."""
    axes = b.rank(x) - 2
    part: dict[str, Any] = {"part": c.pick(parts)} if parts and "max" in kind else {}
    if kind.startswith("adaptive"):
        sizes = (c.pick((ONE, Size.of(2), Size.of(3), size)) for size in b.shape(x)[2:])
        return b.op(f"{kind}{axes}d", x, to="pooled", sizes=tuple(sizes), **part)
    widths = tuple(Size.of(c.pick((1, 2, 3))) for _ in range(axes))
    attrs: dict[str, Any] = {"stride": tuple(Size.of(c.pick((1, 1, 2, 3))) for _ in range(axes))}
    if kind in ("max_pool", "avg_pool"):
        attrs |= {"kernel": widths, "ceil_mode": c.chance(0.3), **part}
        attrs |= {"count_include_pad": c.chance(0.5)} if kind == "avg_pool" else {}
        attrs |= {"padding": (ONE,)} if all(b.size(width) > 1 for width in widths) and c.chance(0.4) else {}
        return b.op(f"{kind}{axes}d", x, to="pooled", **attrs)
    attrs |= {"padding": (c.pick((Size.of(0), ONE)),), "dilation": (Size.of(c.pick((1, 1, 2))),)}
    channels = b.shape(x)[1]
    require(0 < b.size(channels) <= _MOST_CHANNELS, "too many channels", Reason.SIZE)
    depthwise = c.chance(0.4)
    out = ONE if depthwise else c.pick((channels, Size.of(3), ONE))
    if depthwise:
        attrs["groups"] = b.size(channels)
    # A convolution's weight is [out, in of a group, ...], that of a transposed one [in, out of a group, ...].
    first, second = (channels, ONE) if depthwise else (out, channels) if kind == "conv" else (channels, out)
    weight = b.input("weight", (first, second, *widths), Values(), b.dtype_of(x), parameter=True)
    of_bias = first if kind == "conv" or depthwise else second
    bias = [b.input("bias", (of_bias,), dtype=b.dtype_of(x), parameter=True)] if c.chance(0.5) else []
    return b.op(f"{kind}{axes}d", x, weight, *bias, to="convolved", **attrs)


def _interpolate(b: Builder, c: Choices, x: str) -> str:
    mode = c.pick(("nearest", "nearest-exact", *_SMOOTH[b.rank(x)] * 2))
    attrs: dict[str, Any] = {"mode": mode, "align_corners": mode in _SMOOTH[b.rank(x)] and c.chance(0.5)}
    if c.chance(0.5):
        attrs["scale"] = c.pick((2.0, 3.0, 0.5, 1.5))
    else:
        attrs["sizes"] = tuple(c.pick((Size.of(1), Size.of(3), Size.of(7), size)) for size in b.shape(x)[2:])
    attrs |= {"antialias": True} if mode in ("bilinear", "bicubic") and c.chance(0.2) else {}
    return b.op("interpolate", x, to="resized", **attrs)
