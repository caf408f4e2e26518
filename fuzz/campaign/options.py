"""What a campaign is asked to do."""

from dataclasses import dataclass
from pathlib import Path

from corpus.ledger import Ledger
from fuzz.campaign.budget import Budget
from fuzz.evaluator import WorkerConfig
from generators.program.case import Case


@dataclass(frozen=True, slots=True)
class Options:
    """`known`: directories of bugs that are no news; `shrink_seconds`: wall time to shrink one suspicion; `engine`: one of
    ENGINES; `seeds`: cases a guided search or libFuzzer begins with; `ledger`: the bugs people decided about; `against`:
    workers of another interpreter, where what fails there too is no finding."""

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
