"""The dropout mask of a seed, to be looked at or handed to another implementation."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import on_device_of
from kernels.tiles import survives

_BLOCK = 1024


def dropout_mask(
    batch: int, heads: int, seq_len: int, kv_len: int, p: float, seed: int, device: str | torch.device = "cpu"
) -> Tensor:
    """Which weights `attention(..., dropout=(p, seed))` keeps: bool [batch, heads, seq_len, kv_len]."""
    kept = torch.empty(batch, heads, seq_len, kv_len, dtype=torch.uint8, device=device)
    if kept.numel():
        grid = (seq_len, batch * heads, triton.cdiv(kv_len, _BLOCK))
        with on_device_of(kept):
            mask_kernel[grid](kept, seq_len, kv_len, p, seed, BLOCK=_BLOCK)
    return kept.bool()


@triton.jit
def mask_kernel(kept, rows, columns, p, seed, BLOCK: tl.constexpr):
    """`kept` [heads, rows, columns], one byte each."""
    head, i = tl.program_id(1), tl.program_id(0)
    j = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    at = kept + (head.to(tl.int64) * rows + i) * columns + j
    tl.store(at, survives(i, j, head, rows, columns, p, seed).to(tl.uint8), mask=j < columns)
