"""How the work is cut: tile shapes, warps and pipeline stages for each size and device. Fixed, never tuned at run time.

Those for bfloat16 and float16 with 65 to 128 features are the fastest of 24 tried on an H200 at 8192 tokens and 128
features without a mask or bias (Triton 3.6); the others fit in shared memory and were not tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton

INTERPRETER_TILE = 64
"""Tiles of the interpreter are square: smaller ones cost several times as much per element there."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Queries and keys a tile has, warps a program has, stages a loop is pipelined in."""

    block_i: int
    block_j: int
    num_warps: int = 4
    num_stages: int = 2


def block_width(head_dim: int, value_dim: int) -> int:
    """How many features a tile has, of queries, keys and values alike; a product needs at least 16.

    With narrower tiles for values, Triton 3.6 on Hopper multiplies weights and values wrongly wherever the load of the
    values is not pipelined (a head of bfloat16 with 40 features and 7 values, say; the softmax is right).
    """
    return max(16, int(triton.next_power_of_2(max(head_dim, value_dim))))


def forward_schedule(
    dtype: torch.dtype, width: int, device: str, tile: Sequence[int] = (), *, extras: bool = False
) -> Schedule:
    """The forward kernel's for tiles of `width` features; `tile` (queries, keys) overrides its tile shape.

    `extras`: a bias or a mask is loaded for every tile of scores, which takes shared memory.
    """
    if device == "cpu":
        return _with(tile, Schedule(INTERPRETER_TILE, INTERPRETER_TILE))
    if dtype == torch.float32:
        return _with(tile, Schedule(64, 32, 4, 2) if width <= 128 else Schedule(32, 32, 4, 1))
    if width > 128:
        return _with(tile, Schedule(64, 64, 8, 1 if extras else 2))
    if extras:
        return _with(tile, Schedule(64, 64, 4, 2))
    return _with(tile, Schedule(128, 64, 4, 3) if width <= 64 else Schedule(128, 128, 8, 3))


def backward_schedule(
    dtype: torch.dtype, width: int, device: str, tile: Sequence[int] = (), *, extras: bool = False
) -> tuple[Schedule, Schedule]:
    """Those of dk and dv, and of dq; the rest as `forward_schedule`."""
    if device == "cpu":
        both = _with(tile, Schedule(INTERPRETER_TILE, INTERPRETER_TILE))
        return both, both
    if dtype == torch.float32:
        both = _with(tile, Schedule(32, 32, 4, 1))
        return both, both
    if width <= 128 and extras:
        both = _with(tile, Schedule(64, 64, 4, 1))
        return both, both
    if width <= 128:
        return _with(tile, Schedule(64, 64, 4, 2)), _with(tile, Schedule(128, 64, 8, 3))
    return _with(tile, Schedule(32, 64, 8, 1)), _with(tile, Schedule(64, 32, 8, 1))


def _with(tile: Sequence[int], schedule: Schedule) -> Schedule:
    return replace(schedule, block_i=tile[0], block_j=tile[1]) if tile else schedule
