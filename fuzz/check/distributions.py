"""Names the distribution and the layout that a real tensor resembles most, among those that cases have."""

import math

import torch
from torch import Tensor, nn

from fuzz.protocol.recording import RecordedTensor

_SAMPLE = 1 << 16
"""Elements that are read of a large tensor."""
_MASSIVE = 30.0
"""A channel is massive if its largest element is so many times the median of the channels' largest. In language models
it is a hundred to a thousand times the median (Sun et al. 2024, arXiv:2402.17762)."""
_LOW = -1e4
"""Masks hold this or less: models use -10000, the lowest number of the dtype, or -inf."""


def describe_tensor(tensor: Tensor, name: str, origin: str) -> RecordedTensor:
    """The description of a tensor. Its values are looked at as they are now."""
    values = tensor.detach()
    kind, scale = ("", 1.0)
    if values.layout is torch.strided and not values.is_quantized:
        kind, scale = describe_values(values)
    unusual = type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.layout is not torch.strided
    return RecordedTensor(
        tuple(tensor.shape),
        f"{type(tensor).__name__} of {tensor.dtype}" if unusual else str(tensor.dtype).removeprefix("torch."),
        "contiguous" if unusual else describe_layout(tensor),
        kind,
        scale,
        name,
        origin,
        tensor.requires_grad,
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


def describe_values(values: Tensor) -> tuple[str, float]:
    """The name of a distribution of `generators.program.values`, and its scale."""
    if values.dtype is torch.bool:
        return _describe_kept(values)
    if values.is_complex():
        return describe_values(torch.view_as_real(values.resolve_conj()))
    if not values.numel():
        return ("normal" if values.is_floating_point() else "zero_one"), 1.0
    return _describe_floats(values.float()) if values.is_floating_point() else _describe_integers(values.long())


def _describe_kept(kept: Tensor) -> tuple[str, float]:
    """The distribution of a boolean mask that is true where a key is kept."""
    if not kept.numel() or bool(kept.all()):
        return "ones", 1.0
    if not bool(kept.any()):
        return "zeros", 1.0
    if kept.dim() >= 2 and bool((kept == torch.ones_like(kept).tril()).all()):
        return "causal", 1.0
    if kept.dim() >= 1 and bool(kept[..., 0].all()) and bool((kept[..., 1:] <= kept[..., :-1]).all()):
        return "padding", 1.0
    if kept.dim() >= 1 and bool(kept[..., -1].all()) and bool((kept[..., 1:] >= kept[..., :-1]).all()):
        return "left_padding", 1.0
    return "random", round(float(kept.float().mean()), 2)


def _describe_floats(values: Tensor) -> tuple[str, float]:
    flat = values.flatten()[:_SAMPLE]
    least, largest = float(flat.min()), float(flat.max())
    if least == largest and math.isfinite(least):
        return "constant", least
    if least <= _LOW and bool(((flat == 0) | (flat <= _LOW)).all()):
        kept = values == 0
        kind, _ = _describe_kept(kept)
        return (f"{kind}_mask" if kind in ("causal", "padding", "left_padding") else "random_mask"), least
    finite = flat[flat.isfinite()]
    if not finite.numel():
        return "normal", 1.0
    if values.dim() >= 2 and values.shape[-1] >= 8 and bool(values.isfinite().all()):
        channels = values.flatten(0, -2)[: max(1, _SAMPLE // values.shape[-1])].abs().amax(0)
        typical = float(channels.median())
        if typical > 0 and float(channels.max()) > _MASSIVE * typical:
            return "channels", _round(float(channels.max()) / typical)
    deviation = float(finite.square().mean().sqrt())
    return "normal", _round(deviation) or 1.0


def _describe_integers(values: Tensor) -> tuple[str, float]:
    first, least, largest = int(values.flatten()[0]), int(values.min()), int(values.max())
    steps = torch.arange(values.shape[-1], device=values.device) + first if values.dim() else None
    if steps is not None and values.shape[-1] > 1 and bool((values == steps).all()):
        return "positions", float(first)
    if least >= 0:
        return ("zero_one", 1.0) if largest <= 1 else ("tokens", float(largest + 1))
    return "signed", 1.0


def _round(number: float) -> float:
    """Two digits: a case is to be read."""
    return float(f"{number:.2g}")
