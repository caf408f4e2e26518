"""The launches of the kernels. Sizes of 0 are settled here: no kernel is launched for nothing."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

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


class Settings(NamedTuple):
    """The numbers of a call, as kernels take them.

    softcap 0.0: none; left and right -1: unbounded; factor: what the weights that dropout keeps are multiplied with.
    """

    scale: float
    softcap: float
    left: int
    right: int
    offset: int
    dropout_p: float
    factor: float
    seed: int

    @property
    def flags(self) -> list[int]:
        """Whether there is a soft cap, and a bound to the left and to the right."""
        return [int(self.softcap != 0.0), int(self.left >= 0), int(self.right >= 0)]


def block_width(head_dim: int, value_dim: int) -> int:
    """How many features a tile has, of queries, keys and values alike; a product needs at least 16.

    With narrower tiles for values, Triton 3.6 on Hopper multiplies weights and values wrongly wherever the load of the
    values is not pipelined (a head of bfloat16 with 40 features and 7 values, say; the softmax is right).
    """
    return max(16, int(triton.next_power_of_2(max(head_dim, value_dim))))


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
    settings: Settings,
    with_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """(dq, dk, dv, delta [batch, heads, seq_len], dscores [batch, heads, seq_len, kv_len] or None).

    delta is the sum of out * dout over features, float32; dscores the gradient of the scores that the bias was added
    to, `with_scores` alone.
    """
    batch, heads, rows, _ = q.shape
    kv_heads, columns = k.shape[1:3]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dscores = q.new_zeros((*q.shape[:3], columns), dtype=torch.float32) if with_scores else None
    # Contiguous first, so that sums have one order whatever the layout.
    delta = (out.float() * dout.float()).contiguous().sum(-1)
    if not (out.numel() and k.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_(), delta, dscores
    options = _pointers(lse, bias, mask, alibi)
    flags = [*(int(x is not None) for x in (bias, mask, alibi)), *settings.flags]
    constants = _choose_constants(q, v, settings)
    numbers = (heads, heads // kv_heads, rows, columns, q.size(-1), v.size(-1), *settings)
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
    return dq, dk, dv, delta, dscores


def _strides(extra: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    return (0, 0, 0, 0) if extra is None else extra.expand(*q.shape[:3], k.size(2)).stride()


def _pointers(lse: Tensor, bias: Tensor | None, mask: Tensor | None, *rest: Tensor | None) -> list[Tensor]:
    """What kernels load options from: any memory where a call lacks one, and a mask as numbers."""
    numbers = (lse if mask is None else mask).view(torch.uint8)
    return [lse if option is None else option for option in (bias, numbers, *rest)]


def _choose_constants(q: Tensor, v: Tensor, settings: Settings) -> dict[str, int]:
    """What kernels are compiled for."""
    width = block_width(q.size(-1), v.size(-1))
    return {**SCHEDULES[q.device.type], "DROPOUT": settings.dropout_p > 0.0, "BLOCK_D": width}


def on_device_of(q: Tensor) -> AbstractContextManager[object]:
    """Within it, kernels are launched where `q` is."""
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()
