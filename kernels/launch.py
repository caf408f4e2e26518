"""The launches of the kernels. Calls with a size of 0 launch none."""

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
    factor: float  # of the weights that dropout keeps
    seed: int

    @property
    def flags(self) -> list[int]:
        """Whether there are a soft cap, a bound to the left, and a bound to the right."""
        return [int(self.softcap != 0.0), int(self.left >= 0), int(self.right >= 0)]


def block_width(head_dim: int, value_dim: int) -> int:
    """The number of features of a tile, of queries, keys and values alike; a product needs at least 16.

    With narrower tiles for values, Triton 3.6 on Hopper multiplies weights and values wrongly where the load of values
    is not pipelined, as in bfloat16 with head_dim 40 and value_dim 7. The softmax is right.
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

    delta: the sum of out * dout over features, float32. dscores: the gradient of the biased scores, if `with_scores`.
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
    """The memory of options: a mask as numbers, and any memory for a missing option."""
    numbers = (lse if mask is None else mask).view(torch.uint8)
    return [lse if option is None else option for option in (bias, numbers, *rest)]


def _choose_constants(q: Tensor, v: Tensor, settings: Settings) -> dict[str, int]:
    """The compile-time constants of the kernels."""
    width = block_width(q.size(-1), v.size(-1))
    return {**SCHEDULES[q.device.type], "DROPOUT": settings.dropout_p > 0.0, "BLOCK_D": width}


def on_device_of(q: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels are launched on the device of `q`."""
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()
