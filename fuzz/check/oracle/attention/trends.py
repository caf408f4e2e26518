"""Small errors in many elements: statistics of a result beside those of right kernels on the same inputs."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.statistics import Statistics, count_deviations
from fuzz.protocol.failures import BiasedErrors


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
            name: count_deviations(getattr(mine, name), column, torch.tensor([getattr(peer, name) for peer in online]))
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
