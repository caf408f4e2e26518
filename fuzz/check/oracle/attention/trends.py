"""What is wrong a little in many elements: the statistics of a result beside those of right kernels on the same inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.check.oracle import constants
from fuzz.check.oracle.attention.statistics import Statistics, standing


class Trends:
    """Compares `mine` with at least two peers. `unit`: the unit roundoff of the call's dtype.

    message: one line on the trend that is wrong, "" for none. numbers: scale and bias as changes beside the peers' mean,
    and their standing; rms and row as multiples of what the peers have, and their standing.
    """

    def __init__(self, mine: Statistics, peers: Sequence[Statistics], unit: float) -> None:
        columns = {name: torch.tensor([getattr(peer, name) for peer in peers]) for name in _NAMES}
        z = {name: standing(getattr(mine, name), column) for name, column in columns.items()}
        self._row = float(columns["row"].max())
        base = {"rms": float(columns["rms"].max()), "row": self._row}
        ratio = {name: getattr(mine, name) / value if value else 0.0 for name, value in base.items()}
        off = {name: getattr(mine, name) - float(columns[name].mean()) for name in ("scale", "bias")}
        self.numbers = {
            **{f"{name}_ratio": value for name, value in ratio.items()},
            **{f"{name}_change": value for name, value in off.items()},
            **{f"{name}_deviations": value for name, value in z.items()},
        }
        self._localised = False
        self.message = ""
        told = f"{{:.0f}} standard deviations off {len(peers)} right kernels"
        for name in sorted(off, key=lambda name: -z[name]):
            reach = abs(off[name]) * mine.reach[name == "scale"]
            matters = abs(off[name]) > constants.TREND_SHARE * unit and reach > constants.TREND_REACH
            if z[name] > constants.TREND_DEVIATIONS and matters:
                factor = f"{1 + off[name]:.6f}"
                what = f"is what a scale times {factor} gives" if name == "scale" else f"is {factor} times what it should be"
                self.message = f"{what}, on the whole ({told.format(z[name])})"
                return
        for name, limit in (("row", constants.ROW_RATIO), ("rms", constants.RMS_RATIO)):
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
