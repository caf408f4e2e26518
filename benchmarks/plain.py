"""Dense, packed and paged attention in plain torch: the shortest functions that keep those contracts."""

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, scale: float, causal: str | None = None, window: tuple[int, int] | None = None,
    softcap: float | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of sequences one after the other, as docs/kernels.md has it, in float32; differentiable."""
    group, (left, right) = q.shape[1] // max(1, k.shape[1]), window or (-1, -1)
    right = 0 if causal else right
    out = q.new_empty(*q.shape[:2], v.shape[2])
    ends = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for (first, last), (start, end) in ends:
        keys, values = (x[start:end].float().repeat_interleave(group, 1) for x in (k, v))
        s = scale * torch.einsum("ihd,jhd->hij", q[first:last].float(), keys)
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        rows = torch.arange(first, last, device=q.device) - (last if causal else first)
        columns = torch.arange(start, end, device=q.device) - (end if causal else start)
        distance = rows[:, None] - columns
        s = s if alibi is None else s - alibi[:, None, None] * distance.abs()
        dropped = (distance > left) & (left >= 0) | (-distance > right) & (right >= 0)
        s = s.masked_fill(dropped, float("-inf"))
        if sinks is not None:
            s = torch.cat([s, sinks.float()[:, None, None].expand(*s.shape[:2], 1)], -1)
        weights = s.softmax(-1).nan_to_num(0.0)[..., : end - start]
        out[first:last] = torch.einsum("hij,jhd->ihd", weights, values).to(q.dtype)
    return out


def paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, seqused_k: Tensor, block_table: Tensor, **options: Any
) -> Tensor:
    """The same with keys and values in the blocks of a cache."""
    used = seqused_k.tolist()
    k, v = (
        torch.cat([cache[blocks].flatten(0, 1)[:count] for blocks, count in zip(block_table, used, strict=True)])
        for cache in (k_cache, v_cache)
    )
    return packed(q, k, v, cu_seqlens_k=torch.tensor([0, *accumulate(used)]), **options)


def dense(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None) -> Tensor:
    """Attention in float64 with a backward pass of its own."""
    return _Dense.apply(q, k, v, scale, causal)  # type: ignore[no-any-return]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: str | None) -> Tensor:
        group, offset = q.shape[1] // max(1, k.shape[1]), k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
        query, (key, value) = q.double(), (x.double().repeat_interleave(group, 1) for x in (k, v))
        keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        s = (scale * query @ key.mT).masked_fill(~(keep.tril(offset) if causal else keep), float("-inf"))
        weights = s.softmax(-1).nan_to_num(0.0)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.group, ctx.dtype = scale, group, q.dtype
        return (weights @ value).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        query, key, value, weights = ctx.saved_tensors
        dout = gradients[0].double()
        dweights = dout @ value.mT
        dscores = ctx.scale * weights * (dweights - (dweights * weights).sum(-1, keepdim=True))
        dk, dv = (x.unflatten(1, (-1, ctx.group)).sum(2) for x in (dscores.mT @ query, weights.mT @ dout))
        return *(x.to(ctx.dtype) for x in (dscores @ key, dk, dv)), None, None


packed.capabilities = {"layout": "packed"}  # type: ignore[attr-defined]
paged.capabilities = {"layout": "paged"}  # type: ignore[attr-defined]
