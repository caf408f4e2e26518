"""Judging a case, or one a step beside it, under subjects and controls: what all of triage asks a worker."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.evaluator import Setup, Worker, request
from fuzz.protocol import Hello, Result, SubjectResult, Verdict
from generators.errors import UserError
from generators.program.case import Case

SUBJECTS = "triage.attribution.subjects"
"""The module of the controls (see there)."""

_SILENT = SubjectResult("", Verdict.SKIPPED, "no verdict")


def control(base: str, *controls: str) -> str:
    """The subject `base` under controls: `triage.attribution.subjects:passes.attention_off`."""
    return f"{SUBJECTS}:{'.'.join([base, '+'.join(controls)]) if controls else base}"


@dataclass
class Trials:
    """Asks one worker, remembers what it said, and counts. `seconds` is time spent so far."""

    worker: Worker
    repeat: int = 1
    seconds: float = 0.0
    _known: dict[tuple[str, str], Result] = field(default_factory=dict)

    @property
    def hello(self) -> Hello:
        """Who judges."""
        return self.worker.start()

    def judged(self, case: Case, subject: str) -> SubjectResult:
        """What the subject makes of the case; `skipped` where there is no verdict."""
        result = self._asked(case, subject)
        return result.results[0] if result.results else replace(_SILENT, message=result.rejected or "no verdict")

    def must(self, case: Case, subject: str) -> SubjectResult:
        """As `judged`. Raises UserError where eager refuses the case."""
        result = self._asked(case, subject)
        if result.rejected is not None or not result.results:
            raise UserError(f"case {case.id}: eager refuses it, so there is nothing to report: {result.rejected}")
        return result.results[0]

    def fails(self, case: Case, subject: str) -> bool | None:
        """Whether the subject shows a bug; None where there is no verdict."""
        return failed(self.judged(case, subject))

    @contextmanager
    def on(self, device: str) -> "Iterator[Trials]":
        """Trials of the same interpreter on another device, in a worker of their own."""
        with worker_of(replace(self.worker.setup, device=device)) as worker:
            yield Trials(worker, self.repeat)

    def _asked(self, case: Case, subject: str) -> Result:
        key = (case.canonical(), subject)
        if key not in self._known:
            began = time.monotonic()
            self._known[key] = self.worker.check(request(case, (subject,), self.repeat, located=True))
            self.seconds += time.monotonic() - began
        return self._known[key]


def failed(result: SubjectResult | None) -> bool | None:
    """Whether a result shows a bug; None where it is no verdict."""
    return None if result is None or result.verdict is Verdict.SKIPPED else result.verdict.is_finding


def told(result: SubjectResult, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a control said of its run: a name and facts (`triage.attribution.switches.tell`)."""
    for line in result.reached:
        words = line.split(" ", 3)
        if words[:2] == ["told", kind] and len(words) == 4:
            yield words[2], json.loads(words[3])


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
    """Trials in a worker of their own, which knows the controls."""
    with worker_of(replace(setup, named=(*setup.named, f"{SUBJECTS}:*"))) as worker:
        yield Trials(worker, repeat)
