"""Convolutions, pooling, norms of channels, and interpolation, over arguments [batch, channels, ...]."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from generators.errors import require
from generators.program.ops.rules import check_weights, common_float, common_number, count_windows
from generators.program.ops.spec import Attribute, Kind, Line, Operands, OpSpec, flag, word
from generators.program.sizes import ONE, Size, show
from generators.program.values import INTEGERS, LOW_PRECISION, category
from generators.reasons import Reason

_ZERO = Size.of(0)


def _per_axis(call: Operands, name: str, default: Sequence[Size], least: int = 0) -> tuple[Size, ...]:
    """An attribute's number for each of as many axes as `default` has; a single number is that of all."""
    given = call.attrs[name] or default
    values = tuple(given) * (len(default) if len(given) == 1 else 1)
    fits = len(values) == len(default) and min(call.numbers(values), default=least) >= least
    require(fits, f"{name} is {show(given)}, expected 1 or {len(default)} numbers of at least {least}")
    return values


def _split_axes(call: Operands, axes: int) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Batch and channels, and the axes that windows move along."""
    require(len(call.shape) == axes + 2, f"needs an argument of {axes + 2} axes, got {show(call.shape)}")
    return call.shape[:2], call.shape[2:]


def _convolve(call: Operands, axes: int, *, transposed: bool = False) -> tuple[Size, ...]:
    _, weight, *bias = call.args
    (batch, channels), lengths = _split_axes(call, axes)
    require(weight.rank == axes + 2, f"needs a weight of {axes + 2} axes, got {show(weight.shape)}")
    groups = 1 if call.attrs["groups"] is None else call.attrs["groups"]
    (outer,) = call.numbers(weight.shape[:1])
    require(groups >= 1 and outer % groups == 0, f"{outer} channels do not split into {groups} groups")
    given, made = weight.shape[1] * groups, weight.shape[0]
    given, made = (made, given) if transposed else (given, made)
    call.must_equal(channels, given, "channels of the argument and of the weight")
    for item in bias:
        require(item.rank == 1, "needs a bias of one axis")
        call.must_equal(item.shape[0], made, "bias of the channels")
    ones, zeros = (ONE,) * axes, (_ZERO,) * axes
    steps, pads = _per_axis(call, "stride", ones, 1), _per_axis(call, "padding", zeros)
    spread = zip(weight.shape[2:], _per_axis(call, "dilation", ones, 1), strict=True)
    widths = [(width - 1) * dilation + 1 for width, dilation in spread]
    rows = [*zip(lengths, widths, steps, pads, strict=True)]
    if not transposed:
        return (batch, made, *(count_windows(call, whole + pad * 2, width, step) for whole, width, step, pad in rows))
    extra = _per_axis(call, "output_padding", zeros)
    fits = all(more < step for more, step in zip(call.numbers(extra), call.numbers(steps), strict=True))
    require(fits, f"output_padding {show(extra)} is not smaller than stride {show(steps)}")
    return (
        *(batch, made),
        *(
            (whole - 1) * step - pad * 2 + width + more
            for (whole, width, step, pad), more in zip(rows, extra, strict=True)
        ),
    )


def _pool(call: Operands, axes: int) -> tuple[Size, ...]:
    lead, lengths = _split_axes(call, axes)
    widths = _per_axis(call, "kernel", (_ZERO,) * axes, 1)
    steps, pads = _per_axis(call, "stride", widths, 1), _per_axis(call, "padding", (_ZERO,) * axes)
    fits = all(2 * pad <= width for pad, width in zip(call.numbers(pads), call.numbers(widths), strict=True))
    require(fits, f"padding {show(pads)} is more than half of kernel {show(widths)}")
    counts = []
    for whole, width, step, pad in zip(lengths, widths, steps, pads, strict=True):
        count = count_windows(call, whole + pad * 2, width, step)
        length, size, stride, before, number = call.numbers((whole, width, step, pad, count))
        # A window that only the end of the axis cuts off counts if it begins before the padding at the end.
        is_cut = (number - 1) * stride + size < length + 2 * before and number * stride < length + before
        counts.append(count + int(call.attrs["ceil_mode"] and is_cut))
    return (*lead, *counts)


def _pool_to(call: Operands, axes: int) -> tuple[Size, ...]:
    lead, lengths = _split_axes(call, axes)
    return (*lead, *_per_axis(call, "sizes", lengths, 1))


def _check_channels(call: Operands) -> tuple[Size, ...]:
    require(len(call.shape) >= 2, f"needs batch and channels, got {show(call.shape)}")
    check_weights(call, call.args[1:], call.shape[1:2])
    return call.shape


def _batch_norm(call: Operands) -> tuple[Size, ...]:
    few = math.prod(call.numbers((call.shape[0], *call.shape[2:]))) < 2 if call.shape else False
    require(call.attrs["statistics"] == "running" or not few, "a statistic needs more than one element of a channel")
    return _check_channels(call)


def _list_weights(attrs: Mapping[str, Any]) -> Sequence[str]:
    running = ("running_mean", "running_var") if attrs["statistics"] == "running" else ()
    return (*running, *(("weight", "bias") if attrs["affine"] else ()))


def _batch_norm_text(line: Line) -> str:
    running = line.attrs["statistics"] == "running"
    words = [*line.args] if running else [line.args[0], "None", "None", *line.args[1:]]
    return f"F.batch_norm({', '.join([*words, *([] if running else ['training=True']), *line.options('eps')])})"


def _group_norm(call: Operands) -> tuple[Size, ...]:
    shape, groups = _check_channels(call), call.attrs["groups"]
    (channels,) = call.numbers(shape[1:2])
    require(groups >= 1 and channels % groups == 0, f"{channels} channels do not split into {groups} groups")
    return shape


def _group_norm_text(line: Line) -> str:
    return f"F.group_norm({', '.join([line.args[0], line.text('groups'), *line.args[1:], *line.options('eps')])})"


_RANKS = {"linear": (3,), "bilinear": (4,), "bicubic": (4,)}


def _interpolate(call: Operands) -> tuple[Size, ...]:
    mode, scale, sizes = (call.attrs[name] for name in ("mode", "scale", "sizes"))
    require((scale is None) != (sizes is None), "takes the attribute 'sizes' or 'scale'", Reason.SPELLING)
    rank = len(call.shape)
    require(rank in _RANKS.get(mode, (3, 4, 5)), f"{mode} takes no argument of {rank} axes")
    smooth = mode in _RANKS
    # Rounding decides the integers that smooth modes give.
    require(not smooth or call.args[0].dtype != "uint8", f"{mode} takes no uint8")
    require(smooth or not call.attrs["align_corners"], f"{mode} takes no align_corners")
    require(mode in ("bilinear", "bicubic") or not call.attrs["antialias"], f"{mode} takes no antialias")
    lead, lengths = _split_axes(call, rank - 2)
    if sizes is not None:
        return (*lead, *_per_axis(call, "sizes", lengths, 1))
    require(0 < scale < math.inf, f"scale is {scale}, expected a positive number")
    if scale == int(scale):
        return (*lead, *(size * int(scale) for size in lengths))
    counts = [math.floor(length * scale) for length in call.numbers(lengths)]
    require(min(counts) >= 1, f"scale {scale} leaves no element")
    return (*lead, *map(Size.of, counts))


def _interpolate_text(line: Line) -> str:
    size = f"size={line.packed('sizes')}" if line.attrs["sizes"] is not None else line.fill("scale_factor={scale}")
    return f"F.interpolate({', '.join([line.args[0], size, *line.options('mode', 'align_corners', 'antialias')])})"


def _sample_grid(call: Operands) -> tuple[Size, ...]:
    x, grid = call.args
    require(x.rank == grid.rank == 4 and min(call.numbers(x.shape[2:])) >= 1, "needs an image and a grid of four axes")
    call.must_equal(x.shape[0], grid.shape[0], "batches")
    call.must_equal(grid.shape[3], Size.of(2), "coordinates of a point")
    require(not call.autocast, "takes no autocast")
    return (*x.shape[:2], *grid.shape[1:3])


def _sample_text(line: Line) -> str:
    words = [*line.args, *line.options(*_SAMPLE), f"align_corners={line.attrs['align_corners']}"]
    return f"F.grid_sample({', '.join(words)})"


def _convolution_dtype(call: Operands) -> str:
    dtype, spreads = common_number(call), (call.attrs["dilation"] or (ONE,)) != (ONE,)
    # Other kernels have no other integers: '"..." not implemented for' (measured in 2.13.0 and 2.15.0).
    plain = category(dtype) == 2 or dtype == "int64" or not ("output_padding" in call.attrs or spreads)
    require(plain, f"transposed or dilated convolutions take no {dtype}")
    return dtype


def _take_some(*dtypes: str, axes: int = 1) -> Callable[[Operands], str]:
    """The dtype of the first argument, which is floating or one of these, or int64 for places. axes: that are pooled"""

    def infer(call: Operands) -> str:
        own = call.args[0].dtype
        require(category(own) == 2 or own in dtypes, f"takes no {own}")
        # Autocast on the CPU pools along three axes in float32, and no other way.
        own = "float32" if call.autocast and axes == 3 and own in LOW_PRECISION else own
        return "int64" if call.attrs.get("part") == "indices" else own

    return infer


def _call_text(line: Line) -> str:
    """A function of torch.nn.functional, with `kernel` or `sizes` after the arguments, and options by name."""
    places = [name for name in ("kernel", "sizes") if name in line.attrs]
    options = line.options(*(name for name in line.attrs if name not in (*places, "part")))
    options += ["return_indices=True"] if (indices := line.attrs.get("part") == "indices") else []
    return f"F.{line.kind}({', '.join([*line.args, *map(line.packed, places), *options])}){'[1]' * indices}"


_NUMBERS, _NUMBER, _LIST = Attribute(Kind.SIZES), Attribute(Kind.NUMBER), Attribute(Kind.SIZES, required=True)
_CONVOLVE = {**dict.fromkeys(("stride", "padding", "dilation"), _NUMBERS), "groups": Attribute(Kind.INT)}
_POOL = {"kernel": _LIST, "stride": _NUMBERS, "padding": _NUMBERS, "ceil_mode": flag()}
_PART = {"part": word("values", "indices")}
_AVERAGE = {**_POOL, "count_include_pad": flag(default=True)}
_BATCH_NORM = {"statistics": word("batch", "running"), "affine": flag(), "eps": _NUMBER}
_GROUP_NORM = {"groups": Attribute(Kind.INT, required=True), "eps": _NUMBER}
_SAMPLE = {"mode": word("bilinear", "nearest", "bicubic"), "padding_mode": word("zeros", "border", "reflection")}
_INTERPOLATE = {
    "sizes": _NUMBERS,
    "scale": _NUMBER,
    "mode": word("nearest", "nearest-exact", "linear", "bilinear", "bicubic"),
    "align_corners": flag(),
    "antialias": flag(),
}


def _for_each_rank(
    kind: str, shape: Callable[..., tuple[Size, ...]], ranks: Sequence[int] = (1, 2, 3), **rules: Any
) -> list[OpSpec]:
    """The rows of an operation along one axis, two and three."""
    return [OpSpec(kind.format(axes), partial(shape, axes=axes), text=_call_text, **rules) for axes in ranks]


def _pools(
    kind: str, shape: Callable[..., tuple[Size, ...]], *dtypes: str, ranks: Sequence[int] = (1, 2, 3), **rules: Any
) -> list[OpSpec]:
    """The rows of a pooling, of floating arguments or of these dtypes."""
    return [
        row
        for axes in ranks
        for row in _for_each_rank(kind, shape, (axes,), dtype=_take_some(*dtypes, axes=axes), **rules)
    ]


_convolutions = partial(_for_each_rank, dtype=_convolution_dtype, arity=(2, 3))

OPS = [
    *_convolutions("conv{}d", _convolve, attributes=_CONVOLVE),
    *_convolutions(
        "conv_transpose{}d", partial(_convolve, transposed=True), attributes={**_CONVOLVE, "output_padding": _NUMBERS}
    ),
    *_pools("max_pool{}d", _pool, ranks=(1,), attributes=_POOL | _PART),
    *_pools("max_pool{}d", _pool, *INTEGERS, ranks=(2, 3), attributes=_POOL | _PART),
    *_pools("avg_pool{}d", _pool, "int64", attributes=_AVERAGE),
    *_pools("adaptive_avg_pool{}d", _pool_to, attributes={"sizes": _LIST}),
    *_pools("adaptive_max_pool{}d", _pool_to, attributes={"sizes": _LIST, **_PART}),
    OpSpec(
        "batch_norm",
        _batch_norm,
        takes="float",
        text=_batch_norm_text,
        attributes=_BATCH_NORM,
        arity=(1, 5),
        optional=_list_weights,
    ),
    OpSpec("group_norm", _group_norm, takes="float", text=_group_norm_text, attributes=_GROUP_NORM, arity=(1, 3)),
    OpSpec(
        "grid_sample",
        _sample_grid,
        common_float,
        text=_sample_text,
        attributes={**_SAMPLE, "align_corners": flag()},
        arity=(2, 2),
    ),
    OpSpec("interpolate", _interpolate, _take_some("uint8"), text=_interpolate_text, attributes=_INTERPOLATE),
]
