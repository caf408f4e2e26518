"""What one tensor of numbers says of a kernel's result: errors in units of the budget, taken five ways.

With r = (result - truth) / budget over the elements that are judged:

    worst  the largest |r|
    row    the largest root mean square of r over a row (the last axis)
    rms    the root mean square of r
    bias   the result as a multiple of the truth, less 1: sum r g / sum g^2 with g = truth / budget
    scale  the change of the scale that explains the result best: the same with g = (d truth / d log scale) / budget
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """What `bias` and `scale` are measured along, in units of the budget: flat tensors, 0 where nothing is judged."""

    bias: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Statistics:
    """The five numbers; see the module."""

    worst: float
    row: float
    rms: float
    bias: float
    scale: float

    @classmethod
    def of(cls, r: Tensor, directions: Directions) -> "Statistics":
        """The statistics of `r`, [..., features], 0 where nothing is judged."""
        squares = r.square()
        flat = r.flatten()
        return cls(
            worst=float(r.abs().max()),
            row=float(squares.mean(-1).max().sqrt()),
            rms=float(squares.mean().sqrt()),
            bias=_project(flat, directions.bias),
            scale=_project(flat, directions.scale),
        )


def _project(r: Tensor, direction: Tensor) -> float:
    length = float(direction.square().sum())
    return float((r * direction).sum()) / length if length > 0 else 0.0


def count_deviations(value: float, peers: Tensor, online: Tensor) -> float:
    """How many standard deviations (of all peers) a statistic lies off the mean of `peers`."""
    count = len(peers)
    spread = float(peers.var()) * (1 + 1 / count) + (float(online.var()) if len(online) > 1 else 0.0)
    spread = spread**0.5
    apart = abs(value - float(peers.mean()))
    return apart / spread if spread > 0 else (torch.inf if apart else 0.0)
