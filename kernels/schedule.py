"""How the work is cut: tile shapes, warps and pipeline stages for each size and device. Fixed, never tuned at run time.

Those for bfloat16 and float16 up to 128 features are the fastest of 24 tried on an H200 at 8192 tokens (Triton 3.6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

INTERPRETER_TILE = 64
"""Tiles of the interpreter are square: smaller ones cost several times as much per element there."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Queries and keys a tile has, warps a program has, stages a loop is pipelined in."""

    block_i: int
    block_j: int
    num_warps: int = 4
    num_stages: int = 2


def forward_schedule(
    dtype: torch.dtype, head_dim: int, value_dim: int, device: str, tile: Sequence[int] = ()
) -> Schedule:
    """The forward kernel's; `tile` (queries, keys) overrides its tile shape."""
    if device == "cpu":
        return _with(tile, Schedule(INTERPRETER_TILE, INTERPRETER_TILE))
    widest = max(head_dim, value_dim)
    if dtype == torch.float32:
        return _with(tile, Schedule(64, 32, 4, 2) if widest <= 128 else Schedule(32, 32, 4, 1))
    if widest <= 64:
        return _with(tile, Schedule(128, 64, 4, 3))
    return _with(tile, Schedule(128, 128, 8, 3) if widest <= 128 else Schedule(64, 64, 8, 2))


def backward_schedule(
    dtype: torch.dtype, head_dim: int, value_dim: int, device: str, tile: Sequence[int] = ()
) -> tuple[Schedule, Schedule]:
    """Those of dk and dv, and of dq."""
    if device == "cpu":
        both = _with(tile, Schedule(INTERPRETER_TILE, INTERPRETER_TILE))
        return both, both
    widest = max(head_dim, value_dim)
    if dtype == torch.float32:
        both = _with(tile, Schedule(32, 32, 4, 1))
        return both, both
    if widest <= 128:
        return _with(tile, Schedule(64, 64, 4, 2)), _with(tile, Schedule(128, 64, 8, 3))
    return _with(tile, Schedule(32, 64, 8, 1)), _with(tile, Schedule(64, 32, 8, 1))


def _with(tile: Sequence[int], schedule: Schedule) -> Schedule:
    return replace(schedule, block_i=tile[0], block_j=tile[1]) if tile else schedule
