"""Packed and paged attention in plain torch: the shortest functions that keep those contracts."""

from itertools import pairwise

import torch
from torch import Tensor


def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, scale: float, causal: str | None = None, window: tuple[int, int] | None = None,
    softcap: float | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of sequences one after the other, differentiable in q, k and v.

    q [total_q, heads, head_dim], k [total_k, kv_heads, head_dim], v [total_k, kv_heads, value_dim]; cu_seqlens_q and
    cu_seqlens_k, int32 [sequences + 1]. Gives [total_q, heads, value_dim] in q's dtype.
    """
    out = q.new_empty(*q.shape[:2], v.shape[2])
    ends = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for (first, last), (start, end) in ends:
        out[first:last] = _attend(
            q[first:last], k[start:end], v[start:end], scale, causal, window, softcap, alibi, sinks
        )
    return out


def paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cu_seqlens_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, scale: float, causal: str | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None, alibi: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention to keys and values in the blocks of a cache.

    q as in `packed`; k_cache [blocks, block_size, kv_heads, head_dim], v_cache likewise with value_dim; seqused_k,
    int32 [sequences], the keys of each; block_table, int32 [sequences, most blocks of one]. The last queries of a
    sequence meet its last keys.
    """
    out = q.new_empty(*q.shape[:2], v_cache.shape[3])
    for row, (first, last) in enumerate(pairwise(cu_seqlens_q.tolist())):
        used = int(seqused_k[row])
        blocks = block_table[row, : -(-used // k_cache.shape[1])]
        k, v = (cache[blocks].flatten(0, 1)[:used] for cache in (k_cache, v_cache))
        out[first:last] = _attend(q[first:last], k, v, scale, causal, window, softcap, alibi, sinks)
    return out


packed.capabilities = {"layout": "packed"}  # type: ignore[attr-defined]
paged.capabilities = {"layout": "paged"}  # type: ignore[attr-defined]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: str | None, window: tuple[int, int] | None,
    softcap: float | None, alibi: Tensor | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """One sequence, computed in float32."""
    group = q.shape[1] // max(1, k.shape[1])
    keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
    s = scale * torch.einsum("ihd,jhd->hij", q.float(), keys)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    offset = k.shape[0] - q.shape[0] if causal else 0
    i = torch.arange(q.shape[0], device=q.device)[:, None] + offset
    j = torch.arange(k.shape[0], device=q.device)
    s = s if alibi is None else s - alibi[:, None, None] * (i - j).abs()
    left, right = window or (-1, -1)
    right = 0 if causal else right
    dropped = (j < i - left) & (left >= 0) | (j > i + right) & (right >= 0)
    s = s.masked_fill(dropped, float("-inf"))
    if sinks is not None:
        s = torch.cat([s, sinks.float()[:, None, None].expand(*s.shape[:2], 1)], -1)
    weights = s.softmax(-1).nan_to_num(0.0)[..., : k.shape[0]]
    return torch.einsum("hij,jhd->ihd", weights, values).to(q.dtype)
