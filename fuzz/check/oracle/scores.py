"""Scores and weights of an attention in float64, and how far float32 arithmetic may take a score from them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.check.oracle.constants import UNIT_ROUNDOFF


@dataclass(frozen=True)
class Scores:
    """All [batch, heads, seq_len, kv_len] in float64.

    raw: scale * q . k; terms: the sum of the magnitudes of what a score is added up from; slope: the derivative of the
    soft cap, 1 without; weights: the softmax, 0 in a row without a key; error: of a score, absolute (oracle/budget.py),
    0 where no key is kept.
    """

    raw: Tensor
    terms: Tensor
    slope: Tensor
    weights: Tensor
    error: Tensor


def scores(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    unit: float = 0.0,
) -> Scores:
    """Those of q [batch, heads, seq_len, head_dim] and k [batch, heads, kv_len, head_dim], both float64.

    Options as for `oracle.budget.budget`. `unit` is the unit roundoff of what scores are rounded to on their way, 0 when they
    stay in float32.
    """
    ua = UNIT_ROUNDOFF[torch.float32]
    raw = s = scale * (q @ k.mT)
    terms = abs(scale) * (q.abs() @ k.abs().mT)
    slope = torch.ones_like(s)
    if softcap is not None:
        tanh = torch.tanh(s / softcap)
        s, slope = softcap * tanh, 1 - tanh * tanh
    error = ua * terms + unit * raw.abs()
    if bias is not None:
        bias = bias.double()
        s = s + bias
        terms = terms + bias.abs()
        error = error + ua * bias.abs()
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    peak, weights = _softmax(s, sinks)
    error = error + (2 * ua + unit) * s.abs() + ua * (peak - s)
    return Scores(raw, terms, slope, weights, error.where(s.isfinite(), torch.zeros_like(s)))


def folded(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    alibi: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """(mask, bias) with causality and the window taken into the mask, and ALiBi into the bias, as docs/kernels.md defines them.

    Both broadcast to [batch, heads, seq_len, kv_len]; a bias with ALiBi is float64.
    """
    rows, columns = q.shape[2], k.shape[2]
    offset = columns - rows if causal == "bottom_right" else 0
    relative = torch.arange(rows, device=q.device)[:, None] + offset - torch.arange(columns, device=q.device)
    left, right = window or (-1, -1)
    right = 0 if causal is not None else right
    band = (relative <= left) if left >= 0 else None
    if right >= 0:
        band = relative >= -right if band is None else band & (relative >= -right)
    if band is not None:
        mask = band if mask is None else mask & band
    if alibi is not None:
        sloped = -alibi.double()[:, None, None] * relative.abs()
        bias = sloped if bias is None else sloped + bias.double()
    return mask, bias


def _softmax(s: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the largest score of each row, 0 in a row without a key; the weights, 0 in such a row)."""
    if not s.size(-1):
        return s.new_zeros(*s.shape[:-1], 1), s
    peak = s.amax(-1, keepdim=True)
    if sinks is not None:
        peak = torch.maximum(peak, sinks.double()[:, None, None])
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    e = (s - peak).exp()
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.double()[:, None, None] - peak).exp()
    return peak, e / total.masked_fill(total == 0, 1.0)
