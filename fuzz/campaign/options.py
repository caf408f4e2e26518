"""What a campaign is asked to do, and for how long."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corpus.ledger import Ledger
from fuzz.durations import format_duration, parse_duration
from fuzz.evaluator import WorkerConfig
from generators.errors import UserError
from generators.program.case import Case

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


@dataclass(frozen=True, slots=True)
class Options:
    """`known`: directories of bugs that are no news; `shrink_seconds`: wall time to shrink one suspicion; `engine`: one
    of ENGINES; `seeds`: cases a guided search or libFuzzer begins with; `ledger`: the bugs people decided about;
    `against`: workers of another interpreter, where what fails there too is no finding."""

    budget: Budget
    seed: int
    workers: int
    subjects: tuple[str, ...]
    out: Path
    corpus: Path
    known: tuple[Path, ...]
    setup: WorkerConfig
    shrink_seconds: float = 60.0
    fail_fast: bool = False
    engine: str = "random"
    seeds: tuple[Case, ...] = ()
    ledger: Ledger | None = None
    against: WorkerConfig | None = None
