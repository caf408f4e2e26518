"""flash-linear-attention (fla-core) 0.6 on CUDA: `fla.ops.attn.parallel_attn`, which is causal."""

from typing import Any

from torch import Tensor

from kernels.adapters import import_adapted, read_window, require

_parallel_attn = import_adapted("fla.ops.attn", "fla-core").parallel_attn


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None,
    window: tuple[int, int] | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Forward and backward."""
    dense = [x.transpose(1, 2) for x in (q, k, v)]
    return _attend(*dense, scale=scale, causal=causal, window=window, alibi=alibi, sinks=sinks).transpose(1, 2)


def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, scale: float, causal: str | None = None, window: tuple[int, int] | None = None,
    alibi: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Forward and backward of packed sequences, each with as many keys as queries."""
    lengths, x = cu_seqlens_q.long(), (q[None], k[None], v[None])
    return _attend(*x, scale=scale, causal=causal, window=window, alibi=alibi, sinks=sinks, cu_seqlens=lengths)[0]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: str | None, window: tuple[int, int] | None, alibi: Tensor | None,
    sinks: Tensor | None, **options: Any,
) -> Tensor:  # fmt: skip
    """Passes slopes as the decay `g` of a step, whose sum between two positions is slope times distance."""
    left, right = read_window(causal, window)
    require(right == 0, "anything but causal")
    decay = None if alibi is None else -alibi.float().expand(*q.shape[:2], -1)
    out: Tensor = _parallel_attn(
        q, k, v, g=decay, window_size=None if left < 0 else left + 1, sink_bias=sinks, **options
    )
    return out


_LIMITS = {"max_head_dim": 256, "lengths": False, "needs": ("causal",), "devices": ("cuda",)}
attention.capabilities = _LIMITS | {"empty": False}  # type: ignore[attr-defined]
packed.capabilities = _LIMITS | {"layout": "packed"}  # type: ignore[attr-defined]
