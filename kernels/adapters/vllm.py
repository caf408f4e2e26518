"""vLLM's Triton unified attention on CUDA, forward, as packaged in conch-triton-kernels 1.3."""

import torch
from torch import Tensor

from kernels.adapters import HEAD_DIMS, import_adapted, read_window, require

_VLLM = import_adapted("conch.third_party.vllm.unified_attention", "conch-triton-kernels")


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, scale: float, causal: str | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None, alibi: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal from the bottom right; a single query needs no causality."""
    require(causal or (max_seqlen_q == 1 and window is None and alibi is None), "anything but causal")
    out = torch.empty_like(q)
    _VLLM.unified_attention(
        q,
        k,
        v,
        out,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqused_k=seqused_k,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=scale,
        causal=True,
        window_size=read_window(causal, window),
        block_table=block_table,
        softcap=softcap or 0.0,
        **dict.fromkeys(("q_descale", "k_descale", "v_descale")),
        alibi_slopes=alibi,
    )
    return out


attention.capabilities = {  # type: ignore[attr-defined]
    "layout": "paged",
    "poison": "finite",  # it reads the rest of a sequence's last block, which vLLM keeps finite
    "head_dims": HEAD_DIMS[2:],
    "value_dim": False,
    "devices": ("cuda",),
}
