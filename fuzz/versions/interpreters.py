"""Workers of several interpreters, and so of several torch versions, that judge the same cases."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fuzz.evaluator import Setup, Worker, WorkerFault, public_version, request
from fuzz.protocol import Result, Verdict
from fuzz.versions.verdicts import Cell
from generators.errors import UserError
from generators.program.case import Case

_RECYCLE_CHECKS = 2000
_RECYCLE_SHARE = 0.5
"""A worker is replaced when it keeps this share of its memory limit between cases."""


@dataclass(frozen=True, slots=True)
class Question:
    """A case to be judged under one subject on one device; `name`: its file, or what else it is known by; `chosen`: a person
    chose the subject, and wants to hear of no other."""

    name: str
    case: Case
    subject: str
    device: str
    chosen: bool = False


class Interpreter:
    """One interpreter's workers, one for each device. What they compile is kept apart from other versions'."""

    def __init__(self, setup: Setup, scratch: Path) -> None:
        self.setup = setup
        self.torch = ""
        """The torch version, once `start` has asked."""
        self._scratch = scratch
        self._workers: dict[str, Worker] = {}
        self._unusable: dict[str, str] = {}

    def start(self, devices: Sequence[str]) -> frozenset[str]:
        """Start the workers; the subjects that they have. Raises `UserError` when none of the devices can be used."""
        subjects: set[str] = set()
        for device in devices:
            try:
                hello = self._worker(device).start()
            except UserError as error:
                self._unusable[device] = str(error)
            else:
                self.torch = public_version(hello.torch)
                subjects.update(hello.subjects)
        if len(self._unusable) == len(devices):
            raise UserError(self._unusable[devices[0]])
        return frozenset(subjects)

    def judge(self, question: Question, *, fresh: bool = False) -> Cell:
        """What this version makes of a case; a worker that is lost is a verdict too. `fresh`: ask a new worker."""
        if question.device in self._unusable:
            return Cell(Verdict.SKIPPED, self._unusable[question.device])
        worker = self._worker(question.device)
        if fresh:
            worker.close()
        try:
            hello = worker.start()
            if question.subject not in hello.subjects:
                return Cell(Verdict.SKIPPED, f"torch {hello.torch} has no {question.subject}")
            result = worker.check(request(question.case, (question.subject,)))
        except UserError as error:
            return Cell(Verdict.SKIPPED, str(error))
        except WorkerFault as fault:
            return Cell(Verdict.SKIPPED, f"attnfuzz failed: {str(fault).splitlines()[-1].strip()}", fault=True)
        large = result.rss_mib > _RECYCLE_SHARE * self.setup.memory_mib
        if worker.checks >= _RECYCLE_CHECKS or large:
            worker.close()
        return cell_of(result)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers.values():
            worker.close()

    def _worker(self, device: str) -> Worker:
        if device not in self._workers:
            setup, cache = replace(self.setup, device=device), self._scratch / "cache"
            self._workers[device] = Worker(setup, cache, self._scratch / f"{device}.log")
        return self._workers[device]


class Interpreters:
    """Several of them, in the order in which a person upgrades; ended on exit."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="attnfuzz-compare-")
        scratch = Path(self._directory.name)
        self.all = [Interpreter(setup, scratch / str(place)) for place, setup in enumerate(setups)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for interpreter in self.all:
            interpreter.close()
        self._directory.cleanup()

    def start(self, questions: Sequence[Question]) -> list[str]:
        """Start all workers before any work; gives the torch versions. Raises `UserError` for an interpreter that can't be
        used, and for a subject that none of them has."""
        devices = sorted({question.device for question in questions})
        known: frozenset[str] = frozenset().union(*[interpreter.start(devices) for interpreter in self.all])
        for question in questions:
            if known and question.subject not in known:
                raise UserError(f"unknown subject {question.subject!r}; there are {', '.join(sorted(known))}")
        return [interpreter.torch for interpreter in self.all]


def cell_of(result: Result) -> Cell:
    """The cell for a result that was asked about one subject."""
    if result.rejected is not None or not result.results:
        return Cell(Verdict.REJECTED, f"eager refuses it: {result.rejected}")
    one = result.results[0]
    return Cell(one.verdict, one.message, dict(one.numbers), one.fired)
