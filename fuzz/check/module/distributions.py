"""Names the distribution and the layout that a real tensor resembles most, among those that cases have.

Structure is recognised by testing every element, since an error of compiled code may need it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fuzz.check.module.kept_places import Kept, describe_kept
from fuzz.protocol.recording import RecordedTensor

_MASSIVE = 30.0
"""A channel is massive if its largest element is so many times the median of the channels' largest. In language models
it is a hundred to a thousand times the median (Sun et al. 2024, arXiv:2402.17762)."""
_LOW = -1e4
"""Masks hold this or less: models use -10000, the lowest number of the dtype, or -inf."""
_LONG = 8
"""The fewest channels of a row that is told from others. Rows of 8 normal numbers in bfloat16 are equal by chance in
less than one of 10^16 pairs."""


_FEW = 0.9
"""The share of distinct rows below which rows are repeated, as at padding; causal weights begin with equal rows too."""


class Described(NamedTuple):
    """A distribution of `generators.program.values`, its scale and its parameter."""

    kind: str
    scale: float = 1.0
    param: float = 0.0


def describe_tensor(tensor: Tensor, name: str, origin: str) -> RecordedTensor:
    """The description of a tensor. Its values are looked at as they are now."""
    values, found = tensor.detach(), Described("")
    if values.layout is torch.strided and not values.is_quantized:
        found = describe_values(values)
    unusual = type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.layout is not torch.strided
    return RecordedTensor(
        tuple(tensor.shape),
        f"{type(tensor).__name__} of {tensor.dtype}" if unusual else str(tensor.dtype).removeprefix("torch."),
        "contiguous" if unusual else describe_layout(tensor),
        found.kind,
        found.scale,
        name,
        origin,
        tensor.requires_grad,
        found.param,
    )


def describe_layout(tensor: Tensor) -> str:
    """A name of `generators.program.values.LAYOUTS`; contiguous if none fits."""
    rank = tensor.dim()
    if tensor.is_contiguous():
        return "contiguous"
    if rank >= 2 and tensor.transpose(-1, -2).is_contiguous():
        return "transposed"
    if rank >= 3 and tensor.transpose(-2, -3).is_contiguous():
        return "heads_inner"
    return "expanded" if rank >= 2 and tensor.stride(0) == 0 and tensor[0].is_contiguous() else "contiguous"


def describe_values(values: Tensor) -> Described:
    """The distribution that values have or, if they have none of them, that shares their extent."""
    if values.dtype is torch.bool:
        kept = describe_kept(values)
        dropped = describe_kept(~values) if kept.cost > 1 else kept
        return _spell(dropped, "_drop") if dropped.cost < kept.cost else _spell(kept, "")
    if values.is_complex():
        return describe_values(torch.view_as_real(values.resolve_conj()))
    if not values.numel():
        return Described("normal" if values.is_floating_point() else "zero_one")
    if values.is_floating_point():
        return _describe_floats(values.float())
    return _describe_integers(values.long(), is_index=values.dtype in (torch.int64, torch.int32))


def _spell(kept: Kept, spelling: str) -> Described:
    return Described(kept.pattern + spelling, kept.share, kept.param)


def _describe_floats(values: Tensor) -> Described:
    # NaN is neither.
    least, largest = map(float, values.aminmax())
    if least == largest and math.isfinite(least):
        return Described("constant", least)
    if (least, largest) == (0.0, 1.0) and bool(((values == 0) | (values == 1)).all()):
        return _spell(describe_kept(values == 1), "_zero_one")
    if least <= _LOW:
        low = values <= _LOW
        if bool((low | (values == 0)).all()):
            return _describe_added(~low, least, "_mask")
        # A mask on top of a bias: the dropped places hold one number.
        if int(low.sum()) > 1 and bool((values[low] == least).all()):
            return _describe_added(~low, least, "_bias")
    if not (math.isfinite(least) and math.isfinite(largest)):
        return _describe_size("normal", values[values.isfinite()])
    return _describe_alike(values) or _describe_size("normal", values)


def _describe_added(kept: Tensor, low: float, spelling: str) -> Described:
    found = describe_kept(kept)
    return Described(found.pattern + spelling, low, found.param or (found.share if found.share < 1 else 0.0))


def _describe_size(kind: str, values: Tensor, param: float = 0.0) -> Described:
    deviation = float(torch.linalg.vector_norm(values)) / math.sqrt(max(1, values.numel())) or 1.0
    return Described(kind, _round(deviation) or 1.0, param)


def _describe_alike(values: Tensor) -> Described | None:
    """The distribution of values whose rows are alike, or whose channels are not."""
    if values.dim() < 2:
        return None
    if bool((values[..., 0] == 0).any()) and not bool((used := (values != 0).any(-1, keepdim=True)).all()):
        padding = describe_kept(used.transpose(-1, -2))
        side = {"padding": "tail", "key_padding": "tail", "left_padding": "head", "left_key_padding": "head"}
        if padding.pattern in side:
            return _describe_size(f"zero_{side[padding.pattern]}", values[used[..., 0]])
    rows = values.reshape(-1, values.shape[-1])
    if values.shape[-1] < _LONG:
        return None
    distinct = _count_distinct(rows)
    if values.dim() > 2 and len(values) > 1 < distinct and bool((values == values[:1]).all()):
        return _describe_size("equal_items", values)
    if distinct < _FEW * len(rows):
        return _describe_size("repeated_rows", values, float(distinct))
    channels = rows.abs().amax(0)
    typical = float(channels.median())
    if typical > 0 and float(channels.max()) > _MASSIVE * typical:
        return Described("channels", _round(float(channels.max()) / typical))
    return None


def _count_distinct(rows: Tensor) -> int:
    """How many rows differ. Rows of one hash are compared; other hashes are other rows."""
    bits = rows.contiguous().view(torch.int32)
    weights = torch.arange(1, 2 * bits.shape[1], 2, device=rows.device) * 0x9E3779B97F4A7C1
    few = slice(None, None, max(1, bits.shape[1] // 8))
    if len((bits[:, few] * weights[few]).sum(-1).unique()) >= _FEW * len(rows):
        return len(rows)
    _, number = (bits * weights).sum(-1).unique(return_inverse=True)
    count = int(number.max()) + 1
    example = torch.zeros(count, dtype=torch.long, device=rows.device).scatter_(
        0, number, torch.arange(len(rows), device=rows.device)
    )
    return count if torch.equal(bits[example[number]], bits) else len(rows)


def _describe_integers(values: Tensor, *, is_index: bool) -> Described:
    least, largest = int(values.min()), int(values.max())
    if least == largest:
        # Ones of several rows are a mask that could drop some.
        return Described("ones_zero_one") if least == 1 and values.dim() > 1 else Described("constant", float(least))
    if is_index and values.dim() and (found := _describe_positions(values)) is not None:
        return found
    if (least, largest) == (0, 1):
        return _spell(describe_kept(values == 1), "_zero_one")
    if is_index and values.dim() and (found := _describe_tokens(values, least, largest)) is not None:
        return found
    if is_index and least >= 0:
        return Described("lengths" if values.dim() == 1 and least else "tokens", float(largest + 1))
    return Described("between", float(largest + 1), float(least))


def _describe_positions(values: Tensor) -> Described | None:
    """Numbers of places: consecutive, from one start or several, padded, or in another order."""
    length, places = values.shape[-1], torch.arange(values.shape[-1], device=values.device)
    rows = values.reshape(-1, length)
    rises = rows[:, 1:] == rows[:, :-1] + 1
    if bool(rises.all()) and length > 1:
        starts = rows[:, 0]
        equal = bool((starts == starts[0]).all())
        if equal:
            return Described("positions", float(starts[0]))
        return Described("offset_positions", float(starts.max()) + 1) if int(starts.min()) >= 0 else None
    if length > 1 and bool((rows.sort(-1).values == places).all()):
        return Described("permutation")
    # Rows of [fill, ..., fill, first, first + 1, ...] or [first, first + 1, ..., fill, ..., fill].
    run = rises.flip(-1).int().cumprod(-1).sum(-1) + 1
    first = (rows[:, -1] - run + 1).max()
    left = places >= (length - (rows[:, -1] - first + 1))[:, None]
    right = places < (rises.int().cumprod(-1).sum(-1) + 1)[:, None]
    for side, start, kept in (("left_", first, left), ("", rows[0, 0], right)):
        fills = rows[~kept]
        if length > 2 and len(fills) and bool((fills == fills[0]).all()) and bool(kept.any(-1).all()):
            counted = torch.where(kept, start + kept.cumsum(-1) - 1, fills[0])
            if torch.equal(counted, rows) and int(kept.sum(-1).max()) > 2:
                return Described(f"{side}padded_positions", float(start), float(fills[0]))
    if (
        length > 2
        and bool((rows[:, 0] == 0).all())
        and bool((rises | (rows[:, 1:] == 0)).all())
        and int(rows.max()) > 1
    ):
        return Described("packed_positions", 1.0, float((rows == 0).sum(-1).max()))
    return None


def _describe_tokens(values: Tensor, least: int, largest: int) -> Described | None:
    """Cumulative lengths, sorted indices, and ids that are padded on one side."""
    length = values.shape[-1]
    rows = values.reshape(-1, length)
    rises = bool((rows[:, 1:] >= rows[:, :-1]).all())
    if rises and values.dim() == 1 and least == 0:
        return Described("cumulative_lengths", float(largest))
    if rises and length > 2 and least >= 0:
        return Described("sorted_tokens", float(largest + 1))
    for side, end in (("left_", 0), ("", -1)):
        for padding in rows[:, end].unique().tolist()[:_LONG] if length > 2 else []:
            kept = rows != padding
            ends = kept.flip(-1) if side else kept
            is_padded = bool(ends[:, 0].all()) and bool((ends[:, 1:] <= ends[:, :-1]).all())
            rest = values[values != padding]
            if is_padded and int((~kept).sum(-1).max()) > 1 and int(rest.min()) >= 0:
                # Ids that never take the number of padding: one more than they are.
                count = float(max(int(rest.max()), padding) + 1)
                return Described(f"{side}padded_tokens", count, float(padding))
    return None


def _round(number: float) -> float:
    """Two digits: a case is to be read."""
    return float(f"{number:.2g}")
