"""torch's `torch.nn.attention.varlen.varlen_attn` on CUDA, forward and backward (torch 2.11)."""

import inspect
from typing import Any

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from kernels.adapters import HEAD_DIMS, read_window, require


def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, scale: float, causal: str | None = None, window: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Windows count from the bottom right."""
    require(causal or window is None, "a window from the top left")
    options: dict[str, Any] = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    options |= {"scale": scale, "window_size": read_window(causal, window)}
    out = varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options)
    assert isinstance(out, Tensor)
    return out


packed.capabilities = {  # type: ignore[attr-defined]
    "layout": "packed",
    "dtypes": ("float16", "bfloat16"),
    "head_dims": HEAD_DIMS,
    "value_dim": False,
    "grouped": "enable_gqa" in inspect.signature(varlen_attn).parameters,
    "deterministic": (),
    "devices": ("cuda",),
}
