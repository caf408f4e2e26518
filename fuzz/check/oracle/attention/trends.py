"""Small errors in many elements: statistics of a result beside those of right kernels on the same inputs.

With r = (result - truth) / budget over the elements that are judged:

    row    the largest root mean square of r over a row (the last axis)
    rms    the root mean square of r
    bias   the result as a multiple of the truth, less 1: sum r g / sum g^2 with g = truth / budget
    scale  the change of the scale that explains the result best: the same with g = (d truth / d log scale) / budget
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.protocol.failures import BiasedErrors


@dataclass(frozen=True)
class Directions:
    """What `bias` and `scale` are measured along, in units of the budget: flat tensors, 0 where nothing is judged."""

    bias: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Statistics:
    """The four numbers; see above."""

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
            row=float(squares.mean(-1).max().sqrt()),
            rms=float(squares.mean().sqrt()),
            bias=_project(flat, directions.bias),
            scale=_project(flat, directions.scale),
        )


def _project(r: Tensor, direction: Tensor) -> float:
    length = float(direction.square().sum())
    return float((r * direction).sum()) / length if length > 0 else 0.0


def _count_deviations(value: float, peers: Tensor, online: Tensor) -> float:
    """How many standard deviations (of all peers) a statistic lies off the mean of `peers`."""
    count = len(peers)
    spread = float(peers.var()) * (1 + 1 / count) + (float(online.var()) if len(online) > 1 else 0.0)
    spread = spread**0.5
    apart = abs(value - float(peers.mean()))
    return apart / spread if spread > 0 else (torch.inf if apart else 0.0)


class Trends:
    """Compares `mine`, of the result `value`, with at least two peers that round at random, and with some `online`
    ones, whose weights round as those of kernels do that go from one block of keys to the next: a trend that one of
    these has too is rounding. `least`: the smallest bias or change of the scale that matters; infinite for functions
    whose exponentials are off by more than rounding, whose errors may be larger as well.

    failure: the trend that is wrong, None for none. numbers: scale and bias as changes beside
    whatever is nearest, and their standing; rms and row as multiples of what the peers have, and their standing.
    """

    def __init__(
        self, value: str, mine: Statistics, peers: Sequence[Statistics], online: Sequence[Statistics], least: float
    ) -> None:
        columns = {name: torch.tensor([getattr(peer, name) for peer in peers]) for name in _NAMES}
        z = {
            name: _count_deviations(getattr(mine, name), column, torch.tensor([getattr(peer, name) for peer in online]))
            for name, column in columns.items()
        }
        worst = {name: max(getattr(peer, name) for peer in (*peers, *online)) for name in ("rms", "row")}
        self._row = worst["row"]
        ratio = {name: getattr(mine, name) / other if other else 0.0 for name, other in worst.items()}
        off = {
            name: min(
                (
                    getattr(mine, name) - near
                    for near in (float(columns[name].mean()), *(getattr(peer, name) for peer in online))
                ),
                key=abs,
            )
            for name in ("scale", "bias")
        }
        self.numbers = {
            **{f"{name}_ratio": times for name, times in ratio.items()},
            **{f"{name}_change": change for name, change in off.items()},
            **{f"{name}_deviations": deviations for name, deviations in z.items()},
        }
        self.failure: BiasedErrors | None = None
        for name in sorted(off, key=lambda name: -z[name]):
            if z[name] > constants.TREND_DEVIATIONS and abs(off[name]) > least:
                self.failure = BiasedErrors(value, name, 1 + off[name], z[name], len(peers))
                return
        rms_limit = constants.RMS_RATIO if math.isfinite(least) else constants.ROW_RATIO
        for name, limit in (("row", constants.ROW_RATIO), ("rms", rms_limit)):
            if z[name] > constants.TREND_DEVIATIONS and ratio[name] > limit:
                self.failure = BiasedErrors(value, name, ratio[name], z[name], len(peers))
                return

    def rows(self, r: Tensor) -> Tensor | None:
        """The elements of rows whose errors `r` [..., features] are too large, where the failure is about rows."""
        if self.failure is None or self.failure.statistic != "row":
            return None
        return (r.square().mean(-1, keepdim=True).sqrt() > constants.ROW_RATIO * self._row).expand_as(r)


_NAMES = ("row", "rms", "bias", "scale")
