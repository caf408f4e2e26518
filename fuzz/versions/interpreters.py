"""Workers of several interpreters, and so of several torch versions, that judge the same cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fuzz.evaluator import WorkerConfig, WorkerFault, open_evaluator, public_version
from fuzz.protocol import Result, Verdict
from fuzz.protocol.render import describe
from fuzz.versions.verdicts import VersionResult
from generators.errors import UserError
from generators.program.case import Case


@dataclass(frozen=True, slots=True)
class Task:
    """A case to be judged under one subject on one device; `name`: its file, or what else it is known by; `chosen`: the
    user chose the subject, so that no other is shown."""

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

    def judge(self, task: Task, *, fresh: bool = False) -> VersionResult:
        """What this version makes of a case; a worker that is lost is a verdict too. `fresh`: ask a new worker."""
        if task.device in self._unusable:
            return VersionResult(Verdict.SKIPPED, self._unusable[task.device])
        evaluator = self._evaluator.on(task.device)
        try:
            hello = evaluator.hello
            if task.subject not in hello.subjects:
                return VersionResult(Verdict.SKIPPED, f"torch {hello.torch} has no {task.subject}")
            return make_result(evaluator.evaluate(task.case, (task.subject,), fresh=fresh))
        except UserError as error:
            return VersionResult(Verdict.SKIPPED, str(error))
        except WorkerFault as fault:
            return VersionResult(Verdict.SKIPPED, f"attnfuzz failed: {str(fault).splitlines()[-1].strip()}", fault=True)

    def close(self) -> None:
        """End the workers."""
        self._evaluator.close()


class Interpreters:
    """Several of them, in the order in which a person upgrades; ended on exit."""

    def __init__(self, configs: Sequence[WorkerConfig]) -> None:
        self.all = [Interpreter(config) for config in configs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for interpreter in self.all:
            interpreter.close()

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start all workers before any work; gives the torch versions. Raises `UserError` for an interpreter that can't be
        used, and for a subject that none of them has."""
        devices = sorted({task.device for task in tasks})
        known: frozenset[str] = frozenset().union(*[interpreter.start(devices) for interpreter in self.all])
        for task in tasks:
            if known and task.subject not in known:
                raise UserError(f"unknown subject {task.subject!r}; there are {', '.join(sorted(known))}")
        return [interpreter.torch for interpreter in self.all]


def make_result(result: Result) -> VersionResult:
    """What a version made of a case, from the answer about one subject."""
    if result.rejected is not None or not result.results:
        return VersionResult(Verdict.REJECTED, f"eager refuses it: {result.rejected}")
    one = result.results[0]
    return VersionResult(one.verdict, describe(one), dict(one.numbers), one.fired)
