"""How long a campaign runs: an amount of time or a number of cases, in Go's two spellings."""

import re
from dataclasses import dataclass
from typing import Self

from generators.errors import UserError

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_CASES = re.compile(r"(\d+)x")


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds of wall time, or cases to judge; exactly one of the two is set."""

    seconds: float | None = None
    cases: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `90s`, `10m`, `1h30m` or `500x`. Raises `UserError` for anything else, a bare number included."""
        counted = _CASES.fullmatch(text.strip())
        if counted:
            if int(counted[1]) == 0:
                raise UserError(f"budget {text!r} is no case at all: give at least 1x")
            return cls(cases=int(counted[1]))
        return cls(seconds=duration(text, "budget", "90s, 10m, 1h30m or 500x (cases)"))

    def __str__(self) -> str:
        return f"{self.cases}x" if self.seconds is None else spell(self.seconds)


def duration(text: str, what: str, expected: str = "60s, 10m or 1h30m") -> float:
    """Seconds in `text`. Raises `UserError` naming `what` and `expected` when it is not a positive duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        unit = ": the unit is missing" if re.fullmatch(r"[\d.]+", text.strip()) else ""
        raise UserError(f"{what} {text!r} is not understood{unit}; expected {expected}")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise UserError(f"{what} {text!r} is no time at all; expected {expected}")
    return total


def counted(number: int, noun: str) -> str:
    """So many of them: "1 finding", "2 findings"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def spell(seconds: float) -> str:
    """Seconds the way a person writes them: `45s`, `3m20s`, `1h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g}s" if seconds < 10 and seconds != whole else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    minutes = whole % 3600 // 60
    return f"{whole // 3600}h{minutes:02d}m" if minutes else f"{whole // 3600}h"
