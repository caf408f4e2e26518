"""Reductions in every mode, and convolutions, pooling and interpolation, on a value of a program.

`forms.py` draws them. Each function adds operations and returns the name of the last; it raises CaseError for a value
that it can't take.
"""

from collections.abc import Sequence
from typing import Any

from generators.errors import require
from generators.program.case import Values
from generators.program.sizes import ONE, Size
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_SEVERAL = {"sum": 4.0, "mean": 4.0, "amax": 2.0, "amin": 2.0, "logsumexp": 2.0, "norm": 2.0, "var": 2.0, "std": 2.0}
"""Reductions over one axis, several, or all."""
_SINGLE = {"prod": 2.0, "max": 1.0, "min": 1.0, "cumsum": 2.0, "diff": 1.0}
_DTYPES = {
    "sum": ("float32", "float64", "int64", "int32"),
    "mean": ("float32", "float64"),
    "prod": ("float32", "int64"),
    "cumsum": ("float32", "int64"),
}
_ORDERS = (1, 3, 0.5, 2.0, 4)


def write_reduction(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001 - as other forms
    """A reduction over one axis, counted from either end, over several, or over all."""
    kind, rank = c.draw({**_SEVERAL, **_SINGLE}), b.rank(value)
    require(rank > 0, "needs an axis")
    attrs: dict[str, Any] = {"dim": c.below(rank) - c.pick((0, rank))}
    how = c.draw({"axis": 5.0, "several": 4.0, "all": 1.0}) if kind in _SEVERAL else "axis"
    if how != "axis":
        axes = c.subset(range(rank), 0.6) or [0]
        attrs = {"axes": tuple(axis - c.pick((0, rank)) for axis in axes) if how == "several" else ()}
    if how != "all" and kind not in ("cumsum", "diff"):
        attrs["keepdim"] = c.chance(0.5)
    if kind in _DTYPES and c.chance(0.3):
        # torch does not define casts of large numbers and NaN to integers.
        attrs["dtype"] = c.pick([name for name in _DTYPES[kind] if "float" in name or not b.is_float(value)])
    if kind in ("var", "std"):
        attrs["unbiased"] = c.chance(0.6)
    if kind == "norm":
        attrs |= {"order": c.pick(_ORDERS), "form": c.pick(("method", "linalg"))}
    return b.op(kind, value, to="reduced", **attrs)


_WINDOWS = {"conv": 4.0, "conv_transpose": 2.0, "max_pool": 2.0, "avg_pool": 2.0, "adaptive_avg_pool": 1.5}
_SIZED = {"interpolate": 4.0}
_SMOOTH = {3: ("linear",), 4: ("bilinear", "bicubic")}
_MOST_CHANNELS = 64


def write_window(b: Builder, c: Choices, value: str, others: Sequence[str]) -> str:  # noqa: ARG001
    """A convolution, a pooling or an interpolation of a value of two to four axes: [batch, channels, ...]."""
    require(b.is_float(value) and 2 <= b.rank(value) <= 4, "needs two to four axes")
    x = b.op("unsqueeze", value, to="image", dim=c.pick((0, 1))) if b.rank(value) == 2 else value
    axes, kind = b.rank(x) - 2, c.draw({**_WINDOWS, **_SIZED})
    if kind == "interpolate":
        return _interpolate(b, c, x)
    if kind == "adaptive_avg_pool":
        return b.op(f"{kind}{axes}d", x, to="pooled", sizes=tuple(Size.of(c.pick((1, 2, 3))) for _ in range(axes)))
    widths = tuple(Size.of(c.pick((1, 2, 3))) for _ in range(axes))
    attrs: dict[str, Any] = {"stride": tuple(Size.of(c.pick((1, 1, 2, 3))) for _ in range(axes))}
    if kind in ("max_pool", "avg_pool"):
        attrs |= {"kernel": widths, "ceil_mode": c.chance(0.3)}
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
