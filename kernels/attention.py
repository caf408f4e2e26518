"""Attention in Triton with gradients: natively on a GPU, and through Triton's interpreter (TRITON_INTERPRET=1) on
CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.launch import Settings, attention_backward, attention_forward
from kernels.tiles import INTERPRETED

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
CORNERS = ("top_left", "bottom_right")
_MAX_HEADS = 65535
"""The limit of the second axis of a CUDA grid."""
_MAX_EXTENT = 1 << 31
"""Kernels count the elements of a head in 32 bits."""
_MAX_TILES = 64
"""On the CPU, where a tile of 64 x 64 takes 10 to 17 ms."""


def attention(
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
    dropout: tuple[float, int] | None = None,
) -> Tensor:
    """softmax(scale * q k^T, shaped, kept) v, differentiable in q, k, v, bias and sinks, bitwise repeatable.

    q [batch, heads, seq_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, value_dim],
    of one dtype (float32, bfloat16, float16), with any strides; head_dim and value_dim up to 256; heads a multiple of
    kv_heads: query head h reads key head h * kv_heads // heads. Gives [batch, heads, seq_len, value_dim] of that dtype.

    The score of query i and key j, in float32, is scale * q_i . k_j; with `softcap`, softcap * tanh(score / softcap);
    with `alibi` ([heads]), minus alibi[h] * |i + off - j|; plus `bias` (broadcasts to [batch, heads, seq_len, kv_len]).
    Query i keeps key j where `mask` (bool, broadcasts likewise) is True and i + off - left <= j <= i + off + right, for
    `window` = (left, right), -1 for no bound. `causal` sets right to 0, and off to 0 ("top_left") or kv_len - seq_len
    ("bottom_right"); without `causal`, off is 0. `sinks` ([heads]) adds exp(sinks[h]) to the denominator. A row without
    a key gives 0, and so do its gradients. `dropout` = (p, seed) drops weights with probability p, by positions and
    seed alone, and multiplies all other weights by 1 / (1 - p). Weights and score gradients are rounded to the inputs'
    dtype before products, as in flash kernels.

    Raises ValueError for arguments that do not fit, and NotImplementedError for a head without features.
    """
    _check(q, k, v, mask=mask, bias=bias, alibi=alibi, sinks=sinks)
    if causal is not None and causal not in CORNERS:
        raise ValueError(f"causal is {causal!r}, expected one of {', '.join(CORNERS)}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}, expected a positive number")
    left, right = window or (-1, -1)
    if min(left, right) < -1:
        raise ValueError(f"window is {(left, right)}, expected two numbers from 0, or -1 for unbounded")
    p, seed = dropout or (0.0, 0)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability is {p}, expected 0 to 1")
    right = 0 if causal else right
    # No key is further from its query. Larger numbers would overflow in a kernel.
    farthest = q.size(2) + k.size(2)
    left, right = (-1 if side >= farthest else side for side in (left, right))
    offset = k.size(2) - q.size(2) if causal == "bottom_right" else 0
    factor = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    settings = Settings(float(scale), float(softcap or 0.0), left, right, offset, p, factor, seed)
    slopes = None if alibi is None else alibi.float().contiguous()
    out: Tensor = _Attention.apply(q, k, v, bias, None if sinks is None else sinks.contiguous(), mask, slopes, settings)
    return out


attention.capabilities = {  # type: ignore[attr-defined]
    "dtypes": ("float32", "bfloat16", "float16"),
    "max_head_dim": MAX_HEAD_DIM,
    **({"max_scores": _MAX_TILES * 64 * 64} if INTERPRETED.value else {"devices": ("cuda",)}),
}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        mask: Tensor | None,
        alibi: Tensor | None,
        settings: Settings,
    ) -> Any:
        out, lse = attention_forward(q, k, v, bias, mask, alibi, sinks, settings)
        ctx.save_for_backward(q, k, v, out, lse, bias, sinks, mask, alibi)
        ctx.settings = settings
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, bias, sinks, mask, alibi = ctx.saved_tensors
        with_bias = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, delta, dscores = attention_backward(
            dout, q, k, v, out, lse, bias, mask, alibi, ctx.settings, with_bias
        )
        dbias = None if dscores is None else dscores.sum_to_size(bias.shape).to(bias.dtype)
        dsinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            share = torch.exp(sinks.float()[:, None] - lse).nan_to_num(0.0)
            dsinks = -(share * delta).sum((0, 2)).to(sinks.dtype)
        return (dq, dk, dv, dbias, dsinks, *[None] * 3)


def _check(q: Tensor, k: Tensor, v: Tensor, **options: Tensor | None) -> None:
    operands = {"q": q, "k": k, "v": v}
    given = {name: option for name, option in options.items() if option is not None}
    for name, tensor in (operands | given).items():
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}: expected the same")
    if not INTERPRETED.value and not q.is_cuda:
        raise ValueError(f"q is on {q.device}: set TRITON_INTERPRET=1 before triton is imported to run on CPU")
    for name, tensor in operands.items():
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} axes, expected batch, heads, length and features")
        if tensor.dtype != q.dtype or q.dtype not in DTYPES:
            raise ValueError(f"{name} is {tensor.dtype}, expected that of q, one of {', '.join(map(str, DTYPES))}")
        if tensor.size(2) * tensor.stride(2) + tensor.size(3) * tensor.stride(3) >= _MAX_EXTENT:
            raise ValueError(f"a head of {name} reaches over {_MAX_EXTENT} elements, with strides {tensor.stride()}")
    batch, heads, rows, head_dim = q.shape
    kv_heads, columns = k.shape[1:3]
    if k.shape != (batch, kv_heads, columns, head_dim) or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"shapes {list(q.shape)}, {list(k.shape)} and {list(v.shape)} of q, k and v do not fit")
    if heads and (not kv_heads or heads % kv_heads):
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads} key heads")
    if batch * heads > _MAX_HEADS:
        raise ValueError(f"{batch * heads} heads in all batches, expected at most {_MAX_HEADS}")
    for name, size in (("head_dim", head_dim), ("value_dim", v.size(-1))):
        if not size:
            raise NotImplementedError(f"{name} is 0")
        if size > MAX_HEAD_DIM:
            raise ValueError(f"{name} is {size}, expected 1 to {MAX_HEAD_DIM}")
    full = (batch, heads, rows, columns)
    for name, option in given.items():
        if name in ("alibi", "sinks"):
            if option.shape != (heads,):
                raise ValueError(f"{name} has shape {list(option.shape)}, expected [{heads}], one number a head")
        elif option.dim() > 4 or any(s not in (1, n) for s, n in zip(option.shape[::-1], full[::-1], strict=False)):
            raise ValueError(f"{name} {list(option.shape)} does not broadcast to {list(full)}")
        if name == "mask" and option.dtype != torch.bool:
            raise ValueError(f"mask is {option.dtype}, expected torch.bool")
        if name == "bias" and not option.is_floating_point():
            raise ValueError(f"bias is {option.dtype}, expected a floating dtype")
