"""Attention in Triton with gradients: natively on a GPU, and through Triton's interpreter (TRITON_INTERPRET=1) on
CPU."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.backward import dkdv_kernel, dq_kernel
from kernels.forward import forward_kernel
from kernels.tiles import INTERPRETED

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
CORNERS = ("top_left", "bottom_right")
_MAX_HEADS = 65535
"""The most heads of all batches: the limit of the second axis of a CUDA grid."""
_MAX_EXTENT = 1 << 31
"""The most elements that a head reaches over: kernels count them in 32 bits."""
_MAX_TILES = 64
"""The most tiles of scores on the CPU, where a tile of 64 x 64 takes 10 to 17 ms."""
SCHEDULES = {
    "cpu": {"BLOCK_I": 64, "BLOCK_J": 64, "num_warps": 4, "num_stages": 2},
    "cuda": {"BLOCK_I": 32, "BLOCK_J": 32, "num_warps": 8, "num_stages": 1},
}
"""By device: queries and keys of a tile, warps of a program, stages of a pipelined loop.

Smaller tiles cost the interpreter several times as much per element. On CUDA, less work per thread compiles sooner.
"""


class Settings(NamedTuple):
    """The numbers of a call, in the order of the kernels' arguments."""

    scale: float
    softcap: float  # 0.0: none
    left: int  # -1: no bound, as for right
    right: int
    offset: int
    dropout_p: float
    factor: float  # multiplies the weights that dropout keeps
    seed: int

    @property
    def flags(self) -> list[int]:
        """Whether there are a soft cap, a bound to the left, and a bound to the right."""
        return [int(self.softcap != 0.0), int(self.left >= 0), int(self.right >= 0)]


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

    Raises ValueError for arguments that do not fit, and NotImplementedError if head_dim or value_dim is 0.
    """
    _check(q, k, v, mask=mask, bias=bias, alibi=alibi, sinks=sinks)
    _require(causal in (None, *CORNERS), f"causal is {causal!r}, expected one of {', '.join(CORNERS)}")
    _require(softcap is None or softcap > 0, f"softcap is {softcap}, expected a positive number")
    left, right = window or (-1, -1)
    _require(min(left, right) >= -1, f"window is {(left, right)}, expected two numbers from 0, or -1 for unbounded")
    p, seed = dropout or (0.0, 0)
    _require(0.0 <= p <= 1.0, f"dropout probability is {p}, expected 0 to 1")
    right = 0 if causal else right
    # No key is further from its query, and larger numbers would overflow in a kernel.
    farthest = q.size(2) + k.size(2)
    left, right = (-1 if side >= farthest else side for side in (left, right))
    offset = k.size(2) - q.size(2) if causal == "bottom_right" else 0
    factor = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    settings = Settings(float(scale), float(softcap or 0.0), left, right, offset, p, factor, seed)
    slopes = None if alibi is None else alibi.float().contiguous()
    out: Tensor = _Attention.apply(q, k, v, bias, mask, slopes, None if sinks is None else sinks.contiguous(), settings)
    return out


attention.capabilities = {  # type: ignore[attr-defined]
    "dtypes": ("float32", "bfloat16", "float16"),
    "max_head_dim": MAX_HEAD_DIM,
    **({"max_scores": _MAX_TILES * 64 * 64} if INTERPRETED.value else {"devices": ("cuda",)}),
}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        """`given`: as of `attention_forward`."""
        out, lse = attention_forward(*given)
        *tensors, ctx.settings = given
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, mask, alibi, sinks, out, lse = ctx.saved_tensors
        batch, heads, rows, _ = q.shape
        kv_heads, columns = k.shape[1:3]
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        with_bias = bias is not None and ctx.needs_input_grad[3]
        # The gradient of the biased scores.
        dscores = q.new_zeros((*q.shape[:3], columns), dtype=torch.float32) if with_bias else None
        # The sum over features, [batch, heads, seq_len]. Contiguous first, so that sums have one order whatever the
        # layout.
        delta = (out.float() * dout.float()).contiguous().sum(-1)
        if out.numel() and k.numel():
            options = _pointers(lse, bias, mask, alibi)
            flags = [*(int(x is not None) for x in (bias, mask, alibi)), *ctx.settings.flags]
            constants = _choose_constants(q, v, ctx.settings)
            numbers = (heads, heads // kv_heads, rows, columns, q.size(-1), v.size(-1), *ctx.settings)
            strides = (*q.stride(), *k.stride(), *v.stride(), *dout.stride())
            edges = (*_strides(bias, q, k), *_strides(mask, q, k))
            with on_device_of(q):
                dkdv_kernel[(triton.cdiv(columns, constants["BLOCK_J"]), batch * kv_heads)](
                    q, k, v, *options, dout, lse, delta, dk, dv, *strides, *dk.stride(), *dv.stride(),
                    *edges, *numbers, *flags, **constants,
                )  # fmt: skip
                dq_kernel[(triton.cdiv(rows, constants["BLOCK_I"]), batch * heads)](
                    q, k, v, *options, dout, lse, delta, dq, dscores, *strides, *dq.stride(),
                    *edges, *numbers, *flags, **constants,
                )  # fmt: skip
        else:
            dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
        dbias = None if dscores is None else dscores.sum_to_size(bias.shape).to(bias.dtype)
        dsinks = None
        if sinks is not None and ctx.needs_input_grad[6]:
            share = torch.exp(sinks.float()[:, None] - lse).nan_to_num(0.0)
            dsinks = -(share * delta).sum((0, 2)).to(sinks.dtype)
        return dq, dk, dv, dbias, None, None, dsinks, None


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    alibi: Tensor | None,
    sinks: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """(out [batch, heads, seq_len, value_dim], logsumexp [batch, heads, seq_len] float32, natural log)."""
    batch, heads, rows, head_dim = q.shape
    columns, value_dim = v.shape[2:]
    out = torch.empty_like(q) if value_dim == head_dim else q.new_empty(batch, heads, rows, value_dim)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    if not columns:
        empty = torch.full((heads,), -math.inf) if sinks is None else sinks
        return out.zero_(), lse.copy_(empty.to(lse)[:, None].expand_as(lse))
    if out.numel():
        given = [int(x is not None) for x in (bias, mask, alibi, sinks)]
        constants = _choose_constants(q, v, settings)
        with on_device_of(q):
            forward_kernel[(triton.cdiv(rows, constants["BLOCK_I"]), batch * heads)](
                q, k, v, *_pointers(lse, bias, mask, alibi, None if sinks is None else sinks.float()), out, lse,
                *q.stride(), *k.stride(), *v.stride(), *out.stride(), *_strides(bias, q, k), *_strides(mask, q, k),
                heads, heads // k.size(1), rows, columns, head_dim, value_dim, *settings, *given, *settings.flags,
                **constants,
            )  # fmt: skip
    return out, lse


def _strides(extra: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    return (0, 0, 0, 0) if extra is None else extra.expand(*q.shape[:3], k.size(2)).stride()


def _pointers(lse: Tensor, bias: Tensor | None, mask: Tensor | None, *rest: Tensor | None) -> list[Tensor]:
    """Tensors for the pointers of options: a mask as uint8, and `lse` in place of a missing option."""
    numbers = (lse if mask is None else mask).view(torch.uint8)
    return [lse if option is None else option for option in (bias, numbers, *rest)]


def _choose_constants(q: Tensor, v: Tensor, settings: Settings) -> dict[str, int]:
    # The number of features of a tile, of queries, keys and values alike; a product needs at least 16. With narrower
    # tiles for values, Triton 3.6 on Hopper multiplies weights and values wrongly where the load of values is not
    # pipelined, as in bfloat16 with head_dim 40 and value_dim 7. The softmax is right.
    width = max(16, int(triton.next_power_of_2(max(q.size(-1), v.size(-1)))))
    return {**SCHEDULES[q.device.type], "DROPOUT": settings.dropout_p > 0.0, "BLOCK_D": width}


def on_device_of(q: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels are launched on the device of `q`."""
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()


def _check(q: Tensor, k: Tensor, v: Tensor, **options: Tensor | None) -> None:
    operands = {"q": q, "k": k, "v": v}
    given = {name: option for name, option in options.items() if option is not None}
    for name, tensor in (operands | given).items():
        _require(tensor.device == q.device, f"{name} is on {tensor.device}, q on {q.device}: expected the same")
    runs = INTERPRETED.value or q.is_cuda
    _require(runs, f"q is on {q.device}: set TRITON_INTERPRET=1 before triton is imported to run on CPU")
    known = ", ".join(map(str, KERNEL_DTYPES))
    for name, tensor in operands.items():
        axes, strides = tensor.dim(), tensor.stride()
        _require(axes == 4, f"{name} has {axes} axes, expected batch, heads, length and features")
        is_known = tensor.dtype == q.dtype and q.dtype in KERNEL_DTYPES
        _require(is_known, f"{name} is {tensor.dtype}, expected that of q, one of {known}")
        extent = tensor.size(2) * strides[2] + tensor.size(3) * strides[3]
        _require(extent < _MAX_EXTENT, f"a head of {name} reaches over {_MAX_EXTENT} elements, with strides {strides}")
    batch, heads, rows, head_dim = q.shape
    kv_heads, columns = k.shape[1:3]
    fits = k.shape == (batch, kv_heads, columns, head_dim) and v.shape[:3] == k.shape[:3]
    _require(fits, f"shapes {list(q.shape)}, {list(k.shape)} and {list(v.shape)} of q, k and v do not fit")
    grouped = not heads or (kv_heads and heads % kv_heads == 0)
    _require(grouped, f"{heads} query heads are no multiple of {kv_heads} key heads")
    few = batch * heads <= _MAX_HEADS
    _require(few, f"{batch * heads} heads in all batches, expected at most {_MAX_HEADS}")
    for name, size in (("head_dim", head_dim), ("value_dim", v.size(-1))):
        if not size:
            raise NotImplementedError(f"{name} is 0")
        _require(size <= MAX_HEAD_DIM, f"{name} is {size}, expected 1 to {MAX_HEAD_DIM}")
    full = (batch, heads, rows, columns)
    for name, option in given.items():
        shape = list(option.shape)
        if name in ("alibi", "sinks"):
            _require(shape == [heads], f"{name} has shape {shape}, expected [{heads}], one number a head")
        else:
            fits = option.dim() <= 4 and all(s in (1, n) for s, n in zip(shape[::-1], full[::-1], strict=False))
            _require(fits, f"{name} {shape} does not broadcast to {list(full)}")
        _require(name != "mask" or option.dtype == torch.bool, f"mask is {option.dtype}, expected torch.bool")
        _require(name != "bias" or option.is_floating_point(), f"bias is {option.dtype}, expected a floating dtype")


def _require(holds: object, mistake: str) -> None:
    if not holds:
        raise ValueError(mistake)
