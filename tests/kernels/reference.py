"""What attention is: plain torch, step for step as PyTorch's MATH backend computes it. Gradients come from autograd.

No kernel imports this module; it is what kernels are held against.
"""

import math

import torch
from torch import Tensor


def math_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    fill: float = -math.inf,
    bias: Tensor | None = None,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_mask: Tensor | None = None,
) -> Tensor:
    """Attention of q [batch, heads, seq_len, head_dim] over k [batch, kv_heads, kv_len, head_dim] and
    v [batch, kv_heads, kv_len, value_dim]: [batch, heads, seq_len, value_dim] in q's dtype.

    With scale, mask (bool, True keeps), bias (of q's dtype) or causal="top_left" the result is, bit for bit, that of
    `torch.ops.aten._scaled_dot_product_attention_math` (aten/src/ATen/native/transformers/attention.cpp): float16 and
    bfloat16 computed in float32, sqrt(|scale|) on q and on k with the sign on q, keys repeated for grouped queries,
    rows without a key 0, the kept weights' 1 / (1 - dropout_p) on v. The other arguments mean what they mean to
    `kernels.attention.attention`. `dropout_mask` (bool, [batch, heads, seq_len, kv_len]) says which weights are kept.
    float64 inputs are computed in float64. `fill` takes the place of the scores that `mask` drops.
    """
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    factor = math.sqrt(abs(scale))
    q = q * (-factor if scale < 0 else factor)
    group = q.size(1) // k.size(1) if k.size(1) else 1
    if group > 1:
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = torch.matmul(q, k.transpose(-2, -1) * factor)
    scores = _shaped(scores, causal, softcap, alibi)
    if mask is not None and fill != -math.inf:
        scores, mask = torch.where(mask, scores, fill), None
    for kept in (mask, _band(q.size(-2), k.size(-2), causal, window, q.device)):
        if kept is not None:
            # MATH turns a boolean mask into numbers of the inputs' dtype and adds it.
            scores = scores + torch.zeros_like(kept, dtype=dtype).masked_fill(~kept, -math.inf)
    if bias is not None:
        scores = scores + bias
    weights = _safe_softmax(scores, sinks)
    if dropout_p > 0.0 and dropout_mask is not None:
        weights = weights.masked_fill(~dropout_mask, 0.0)
        v = v * (1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0)
    return torch.matmul(weights, v).to(dtype)


def _shaped(scores: Tensor, causal: str | None, softcap: float | None, alibi: Tensor | None) -> Tensor:
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi is not None:
        distance = _relative(scores.size(-2), scores.size(-1), causal, scores.device).abs()
        scores = scores - alibi.to(scores.dtype)[:, None, None] * distance
    return scores


def _relative(rows: int, columns: int, causal: str | None, device: torch.device) -> Tensor:
    """The number i + off - j of every query i and key j, [rows, columns]."""
    offset = columns - rows if causal == "bottom_right" else 0
    return torch.arange(rows, device=device)[:, None] + offset - torch.arange(columns, device=device)


def _band(
    rows: int, columns: int, causal: str | None, window: tuple[int, int] | None, device: torch.device
) -> Tensor | None:
    """Which keys causality and the window keep, [rows, columns]; None when they keep all."""
    if causal is None and window is None:
        return None
    left, right = window or (-1, -1)
    relative = _relative(rows, columns, causal, device)
    kept = torch.ones(rows, columns, dtype=torch.bool, device=device)
    if causal is not None:
        kept &= relative >= 0
    if left >= 0:
        kept &= relative <= left
    if right >= 0:
        kept &= relative >= -right
    return kept


def _safe_softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last axis with rows that are -inf throughout at 0; a sink is one more term in the
    denominator."""
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return _safe_softmax(torch.cat((scores, column), dim=-1), None)[..., :-1]
    if not scores.size(-1):
        return scores
    empty = (scores == -math.inf).all(dim=-1, keepdim=True)
    # Filled before, too: the gradient of a softmax over -inf alone is NaN.
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
