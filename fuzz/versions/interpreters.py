"""Workers of several interpreters, and so of several torch versions, that judge the same cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fuzz.evaluator import WorkerConfig, WorkerFault, open_evaluator, public_version
from fuzz.protocol import Result, Verdict
from fuzz.versions.verdicts import Cell
from generators.errors import UserError
from generators.program.case import Case


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

    def __init__(self, config: WorkerConfig) -> None:
        self.torch = ""
        """The torch version, once `start` has asked."""
        self._evaluator = open_evaluator(config)
        self._unusable: dict[str, str] = {}

    def start(self, devices: Sequence[str]) -> frozenset[str]:
        """Start the workers; the subjects that they have. Raises `UserError` when none of the devices can be used."""
        subjects: set[str] = set()
        for device in devices:
            try:
                hello = self._evaluator.on(device).hello
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
        evaluator = self._evaluator.on(question.device)
        try:
            hello = evaluator.hello
            if question.subject not in hello.subjects:
                return Cell(Verdict.SKIPPED, f"torch {hello.torch} has no {question.subject}")
            return cell_of(evaluator.evaluate(question.case, (question.subject,), fresh=fresh))
        except UserError as error:
            return Cell(Verdict.SKIPPED, str(error))
        except WorkerFault as fault:
            return Cell(Verdict.SKIPPED, f"attnfuzz failed: {str(fault).splitlines()[-1].strip()}", fault=True)

    def close(self) -> None:
        """End the workers."""
        self._evaluator.close()


class Interpreters:
    """Several of them, in the order in which a person upgrades; ended on exit."""

    def __init__(self, setups: Sequence[WorkerConfig]) -> None:
        self.all = [Interpreter(setup) for setup in setups]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for interpreter in self.all:
            interpreter.close()

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
