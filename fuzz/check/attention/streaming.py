"""Attention as kernels compute it that keep the logarithm of each row's sum: right, and with their rounding.

Softmax as eager computes it subtracts the row's largest score, and the rounding of large scores cancels. A kernel that
recomputes weights as exp(score - lse), in its backward pass at least, has an error of the size of a score's ulp in every
weight; weights, gradients of scores and the output it takes sums of are rounded to the inputs' dtype. Under noise this
function moves as far as such kernels are allowed to.
"""

from typing import Any

import torch
from torch import Tensor


def streaming(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    chance: torch.Generator | None = None,
    **_options: Any,
) -> Tensor:
    """The attention function, without dropout and with `fill` taken for -inf; `chance` decides how outputs round."""
    dtype = q.dtype
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    q, k, v = q.float(), k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = (q @ k.transpose(-2, -1)) * scale
    if scores.requires_grad:
        scores.register_hook(lambda grad: grad.to(dtype).float())
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    rows, columns = scores.shape[-2:]
    offset = columns - rows if causal == "bottom_right" else 0
    i = torch.arange(rows, device=q.device).unsqueeze(1) + offset
    j = torch.arange(columns, device=q.device)
    if alibi is not None:
        scores = scores - alibi.float().view(-1, 1, 1) * (i - j).abs()
    if bias is not None:
        scores = scores + bias
    left, right = window or (-1, -1)
    right = 0 if causal is not None else right
    keep = torch.ones(rows, columns, dtype=torch.bool, device=q.device)
    if left >= 0:
        keep = keep & (j >= i - left)
    if right >= 0:
        keep = keep & (j <= i + right)
    if mask is not None:
        keep = keep & mask
    lowest = torch.finfo(scores.dtype).min
    scores = torch.where(keep, scores, lowest)
    terms = scores if sinks is None else torch.cat([scores, sinks.float().view(-1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    lse = terms.logsumexp(-1, keepdim=True) if terms.shape[-1] else scores.sum(-1, keepdim=True)
    # The gradient of a weight is dout . v, less delta = dout . out once a row: from the rounded output, as kernels take it.
    weights = torch.where(keep, (scores - lse.detach()).exp(), 0.0)
    out = _rounded(weights, dtype) @ v
    if chance is not None:
        # Which way an output happens to round decides by how much delta is off.
        moved = 2 * torch.rand(out.shape, generator=chance).to(out.device) - 1
        out = out * (1 + torch.finfo(dtype).eps / 2 * moved)
    out = out.to(dtype).float()
    return (out - out.detach() * (lse - lse.detach())).to(dtype)


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` rounded to `dtype`; its gradient is not."""
    return value + (value.to(dtype).float() - value).detach()
