"""How long a campaign runs: an amount of time or a number of cases, in Go's two spellings."""

import re
from dataclasses import dataclass
from typing import Self

from fuzz.durations import format_duration, parse_duration
from generators.errors import UserError

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
                raise UserError(f"budget must be at least 1x, got {text!r}")
            return cls(cases=int(counted[1]))
        return cls(seconds=parse_duration(text, "budget", "90s, 10m, 1h30m or 500x (cases)"))

    def __str__(self) -> str:
        return f"{self.cases}x" if self.seconds is None else format_duration(self.seconds)
