"""vLLM's Triton unified attention, as packaged in conch-triton-kernels 1.3: paged, causal, forward, on CUDA."""

import torch
from torch import Tensor

from kernels.adapters import import_adapted, require

_unified_attention = import_adapted(
    "conch.third_party.vllm.unified_attention", "conch-triton-kernels"
).unified_attention


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """Keys and values are copied into pages, in reverse order."""
    batch, heads, seq_len, head_dim = q.shape
    left, right = window or (-1, -1)
    require(right <= 0, "a window to the right")
    corner = causal or ("top_left" if right == 0 else None)
    require(corner is not None or seq_len == 1, "anything but causal")
    counted = corner == "top_left" or (causal is None and (window is not None or alibi is not None))
    require(not counted or seq_len == k.shape[2], "a corner other than the bottom right")
    size = 32 if k.shape[2] % 2 else 16
    pages = -(-k.shape[2] // size)
    table = torch.arange(batch * pages, dtype=torch.int32, device=q.device).flip(0).view(batch, pages)
    out = torch.empty(batch * seq_len, heads, head_dim, dtype=q.dtype, device=q.device)
    _unified_attention(
        q.transpose(1, 2).reshape(out.shape),
        _page(k, table, size),
        _page(v, table, size),
        out,
        cu_seqlens_q=torch.arange(batch + 1, dtype=torch.int32, device=q.device) * seq_len,
        max_seqlen_q=seq_len,
        seqused_k=torch.full((batch,), k.shape[2], dtype=torch.int32, device=q.device),
        max_seqlen_k=k.shape[2],
        softmax_scale=scale,
        causal=True,
        window_size=(left, right),
        block_table=table,
        softcap=softcap or 0.0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        alibi_slopes=alibi,
    )
    return out.view(batch, seq_len, heads, head_dim).transpose(1, 2)


def _page(x: Tensor, table: Tensor, size: int) -> Tensor:
    """The cache [pages, size, kv_heads, head_dim] that holds x [batch, kv_heads, kv_len, head_dim]."""
    cache = x.new_zeros(table.numel(), size, x.shape[1], x.shape[3])
    padded = x.new_zeros(x.shape[0], table.shape[1] * size, *cache.shape[2:])
    padded[:, : x.shape[2]] = x.transpose(1, 2)
    cache[table.flatten().long()] = padded.view(-1, *cache.shape[1:])
    return cache


attention.capabilities = {  # type: ignore[attr-defined]
    "head_dims": (32, 64, 80, 96, 112, 120, 128, 192, 256),
    "value_dim": False,
    "training": False,
    "empty": False,
    "devices": ("cuda",),
}
