"""flash-linear-attention (fla-core) 0.6: `fla.ops.attn.parallel_attn`, causal, on CUDA."""

from torch import Tensor

from kernels.adapters import import_adapted, require

_parallel_attn = import_adapted("fla.ops.attn", "fla-core").parallel_attn


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Slopes are given as the decay `g` of every step, whose sum between two positions is slope times distance."""
    left, right = window or (-1, -1)
    require(causal is not None or right == 0, "anything but causal")
    decay = None if alibi is None else -alibi.float().expand(q.shape[0], q.shape[2], -1)
    out: Tensor = _parallel_attn(
        *(x.transpose(1, 2) for x in (q, k, v)),
        g=decay,
        scale=scale,
        window_size=None if left < 0 else left + 1,
        sink_bias=sinks,
    )
    return out.transpose(1, 2)


attention.capabilities = {  # type: ignore[attr-defined]
    "max_head_dim": 256,
    "lengths": False,
    "empty": False,
    "devices": ("cuda",),
}
