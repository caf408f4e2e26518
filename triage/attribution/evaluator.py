"""Judging a case, or one a step beside it, under subjects and controls: what all of triage asks a worker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.evaluator import Setup, Worker, request
from fuzz.protocol import Hello, Result, SubjectResult, Verdict
from fuzz.protocol.controls import Control
from generators.errors import UserError
from generators.program.case import Case

_SILENT = SubjectResult("", Verdict.SKIPPED, "no verdict")


@dataclass
class Trials:
    """Asks one worker, remembers what it said, and counts. `seconds` is time spent so far."""

    worker: Worker
    repeat: int = 1
    seconds: float = 0.0
    _known: dict[tuple[str, str, tuple[Control, ...]], Result] = field(default_factory=dict)

    @property
    def hello(self) -> Hello:
        """Who judges."""
        return self.worker.start()

    def judged(self, case: Case, subject: str, *controls: Control) -> SubjectResult:
        """What the subject makes of the case under controls; `skipped` where there is no verdict."""
        result = self._asked(case, subject, controls)
        return result.results[0] if result.results else replace(_SILENT, message=result.rejected or "no verdict")

    def must(self, case: Case, subject: str, *controls: Control) -> SubjectResult:
        """As `judged`. Raises UserError where eager refuses the case."""
        result = self._asked(case, subject, controls)
        if result.rejected is not None or not result.results:
            raise UserError(f"case {case.id}: eager refuses it, so there is nothing to report: {result.rejected}")
        return result.results[0]

    def fails(self, case: Case, subject: str, *controls: Control) -> bool | None:
        """Whether the subject shows a bug under controls; None where there is no verdict."""
        return failed(self.judged(case, subject, *controls))

    @contextmanager
    def on(self, device: str) -> "Iterator[Trials]":
        """Trials of the same interpreter on another device, in a worker of their own."""
        with worker_of(replace(self.worker.setup, device=device)) as worker:
            yield Trials(worker, self.repeat)

    def _asked(self, case: Case, subject: str, controls: tuple[Control, ...]) -> Result:
        key = (case.canonical(), subject, controls)
        if key not in self._known:
            began = time.monotonic()
            asked = request(case, (subject,), self.repeat, located=True, controls=controls)
            self._known[key] = self.worker.check(asked)
            self.seconds += time.monotonic() - began
        return self._known[key]


def failed(result: SubjectResult | None) -> bool | None:
    """Whether a result shows a bug; None where it is no verdict."""
    return None if result is None or result.verdict is Verdict.SKIPPED else result.verdict.is_finding


@contextmanager
def worker_of(setup: Setup) -> Iterator[Worker]:
    """A worker with a compile cache of its own, ended on exit."""
    with TemporaryDirectory(prefix="attnfuzz-report-") as scratch:
        worker = Worker(setup, Path(scratch) / "cache", Path(scratch) / "worker.log")
        try:
            yield worker
        finally:
            worker.close()


@contextmanager
def trials_of(setup: Setup, repeat: int = 1) -> Iterator[Trials]:
    """Trials in a worker of their own."""
    with worker_of(setup) as worker:
        yield Trials(worker, repeat)
