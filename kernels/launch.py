"""The kernels as two torch operators, `attnfuzz::attention_forward` and `attnfuzz::attention_backward`, opaque to a
compiler.

Sizes of 0 are settled here: no kernel is launched for nothing.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

from kernels.backward import dkdv_kernel, dq_kernel
from kernels.forward import forward_kernel

SCHEDULES = {
    "cpu": {"BLOCK_I": 64, "BLOCK_J": 64, "num_warps": 4, "num_stages": 2},
    "cuda": {"BLOCK_I": 32, "BLOCK_J": 32, "num_warps": 8, "num_stages": 1},
}
"""By device: queries and keys a tile has, warps a program has, stages a loop is pipelined in. Smaller tiles cost the
interpreter several times as much per element; on CUDA the less a thread does, the sooner a kernel is compiled."""


def block_width(head_dim: int, value_dim: int) -> int:
    """How many features a tile has, of queries, keys and values alike; a product needs at least 16.

    With narrower tiles for values, Triton 3.6 on Hopper multiplies weights and values wrongly wherever the load of the
    values is not pipelined (a head of bfloat16 with 40 features and 7 values, say; the softmax is right).
    """
    return max(16, int(triton.next_power_of_2(max(head_dim, value_dim))))


@torch.library.custom_op("attnfuzz::attention_forward", mutates_args=())
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    alibi: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
    dropout_p: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """(out [batch, heads, seq_len, value_dim], logsumexp [batch, heads, seq_len] float32, natural log).

    softcap 0.0: none; left and right -1: unbounded. The rest as `kernels.attention.attention`.
    """
    out = _like(q, v.size(-1))
    batch, heads, rows, _ = q.shape
    columns = k.size(2)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    if not columns:
        empty = torch.full((heads,), -math.inf) if sinks is None else sinks
        return out.zero_(), lse.copy_(empty.to(lse)[:, None].expand_as(lse))
    if out.numel():
        given = [x is not None for x in (bias, mask, alibi, sinks)]
        constants = _choose_constants(q, v, dropout_p)
        with on_device_of(q):
            forward_kernel[(triton.cdiv(rows, constants["BLOCK_I"]), batch * heads)](
                q, k, v, *_pointers(lse, bias, mask, alibi, None if sinks is None else sinks.float()), out, lse,
                *q.stride(), *k.stride(), *v.stride(), *out.stride(), *_strides(bias, q, k), *_strides(mask, q, k),
                heads, heads // k.size(1), rows, columns, q.size(-1), v.size(-1), scale, softcap, left, right, offset,
                dropout_p, _factor(dropout_p), seed,
                *map(int, (*given, softcap != 0.0, left >= 0, right >= 0)), **constants,
            )  # fmt: skip
    return out, lse


@attention_forward.register_fake
def _(q: Tensor, _k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _like(q, v.size(-1)), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


@torch.library.custom_op("attnfuzz::attention_backward", mutates_args=())
def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    alibi: Tensor | None,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
    dropout_p: float,
    seed: int,
    with_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, delta [batch, heads, seq_len], dscores [batch, heads, seq_len, kv_len] or, without `with_scores`,
    [0]).

    delta is the sum of out * dout over features, float32; dscores the gradient of the scores that the bias was added
    to.
    """
    batch, heads, rows, _ = q.shape
    kv_heads, columns = k.shape[1:3]
    dq, dk, dv, _, dscores = _gradients(q, k, v, with_scores)
    dscores.zero_()
    # Contiguous first, so that sums have one order whatever the layout.
    delta = (out.float() * dout.float()).contiguous().sum(-1)
    if not (out.numel() and k.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_(), delta, dscores
    group, options = heads // kv_heads, _pointers(lse, bias, mask, alibi)
    given = [x is not None for x in (bias, mask, alibi)]
    flags = [*map(int, (*given, softcap != 0.0, left >= 0, right >= 0))]
    constants = _choose_constants(q, v, dropout_p)
    numbers = (heads, group, rows, columns, q.size(-1), v.size(-1), scale, softcap, left, right, offset, dropout_p)
    strides = (*q.stride(), *k.stride(), *v.stride(), *dout.stride())
    edges = (*_strides(bias, q, k), *_strides(mask, q, k))
    with on_device_of(q):
        dkdv_kernel[(triton.cdiv(columns, constants["BLOCK_J"]), batch * kv_heads)](
            q, k, v, *options, dout, lse, delta, dk, dv, *strides, *dk.stride(), *dv.stride(),
            *edges, *numbers, _factor(dropout_p), seed, *flags, **constants,
        )  # fmt: skip
        dq_kernel[(triton.cdiv(rows, constants["BLOCK_I"]), batch * heads)](
            q, k, v, *options, dout, lse, delta, dq, dscores if with_scores else None, *strides, *dq.stride(),
            *edges, *numbers, _factor(dropout_p), seed, *flags, **constants,
        )  # fmt: skip
    return dq, dk, dv, delta, dscores


@attention_backward.register_fake
def _(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return _gradients(q, k, v, bool(rest[-1]))


def _like(q: Tensor, value_dim: int) -> Tensor:
    return torch.empty_like(q) if value_dim == q.size(-1) else q.new_empty(*q.shape[:-1], value_dim)


def _gradients(q: Tensor, k: Tensor, v: Tensor, with_scores: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    delta = q.new_empty(q.shape[:3], dtype=torch.float32)
    dscores = q.new_empty((*q.shape[:3], k.size(2)) if with_scores else (0,), dtype=torch.float32)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), delta, dscores


def _strides(extra: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    return (0, 0, 0, 0) if extra is None else extra.expand(*q.shape[:3], k.size(2)).stride()


def _pointers(lse: Tensor, bias: Tensor | None, mask: Tensor | None, *rest: Tensor | None) -> list[Tensor]:
    """What kernels load options from: any memory where a call lacks one, and a mask as numbers."""
    numbers = (lse if mask is None else mask).view(torch.uint8)
    return [lse if option is None else option for option in (bias, numbers, *rest)]


def _factor(dropout_p: float) -> float:
    """What the weights that dropout keeps are multiplied with."""
    return 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0


def _choose_constants(q: Tensor, v: Tensor, dropout_p: float) -> dict[str, int]:
    """What kernels are compiled for."""
    width = block_width(q.size(-1), v.size(-1))
    return {**SCHEDULES[q.device.type], "DROPOUT": dropout_p > 0.0, "BLOCK_D": width}


def on_device_of(q: Tensor) -> AbstractContextManager[object]:
    """Within it, kernels are launched where `q` is."""
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()
