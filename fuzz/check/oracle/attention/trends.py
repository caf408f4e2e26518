"""What is wrong a little in many elements: the statistics of a result beside those of right kernels on the same inputs."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.statistics import Statistics, standing


class Trends:
    """Compares `mine` with at least two peers that round at random, and with some `online` ones, whose weights round as those of
    kernels do that go from one block of keys to the next: a trend that one of these has too is rounding. `least`: the smallest
    bias or change of the scale that matters; infinite for functions whose exponentials are off by more than rounding, whose
    errors may be larger as well.

    message: one line on the trend that is wrong, "" for none. numbers: scale and bias as changes beside
    whatever is nearest, and their standing; rms and row as multiples of what the peers have, and their standing.
    """

    def __init__(
        self, mine: Statistics, peers: Sequence[Statistics], online: Sequence[Statistics], least: float
    ) -> None:
        columns = {name: torch.tensor([getattr(peer, name) for peer in peers]) for name in _NAMES}
        z = {
            name: standing(getattr(mine, name), column, torch.tensor([getattr(peer, name) for peer in online]))
            for name, column in columns.items()
        }
        worst = {name: max(getattr(peer, name) for peer in (*peers, *online)) for name in ("rms", "row")}
        self._row = worst["row"]
        ratio = {name: getattr(mine, name) / value if value else 0.0 for name, value in worst.items()}
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
            **{f"{name}_ratio": value for name, value in ratio.items()},
            **{f"{name}_change": value for name, value in off.items()},
            **{f"{name}_deviations": value for name, value in z.items()},
        }
        self._localised = False
        self.message = ""
        told = f"{{:.0f}} standard deviations off {len(peers)} right kernels"
        for name in sorted(off, key=lambda name: -z[name]):
            if z[name] > constants.TREND_DEVIATIONS and abs(off[name]) > least:
                factor = f"{1 + off[name]:.6f}"
                what = (
                    f"is what a scale times {factor} gives"
                    if name == "scale"
                    else f"is {factor} times what it should be"
                )
                self.message = f"{what}, on the whole ({told.format(z[name])})"
                return
        rms_limit = constants.RMS_RATIO if math.isfinite(least) else constants.ROW_RATIO
        for name, limit in (("row", constants.ROW_RATIO), ("rms", rms_limit)):
            if z[name] > constants.TREND_DEVIATIONS and ratio[name] > limit:
                what = "errors are" if name == "rms" else "the errors of the worst row are"
                self.message = f"{what} {ratio[name]:.2g} times those of right kernels ({told.format(z[name])})"
                self._localised = name == "row"
                return

    def rows(self, r: Tensor) -> Tensor | None:
        """The elements of rows whose errors `r` [..., features] are too large, where the message is about rows."""
        if not self._localised:
            return None
        return (r.square().mean(-1, keepdim=True).sqrt() > constants.ROW_RATIO * self._row).expand_as(r)


_NAMES = ("row", "rms", "bias", "scale")
