"""The same cases under several torch versions, each in workers of its own: what is asked, and a row for each answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from corpus.entry import DEVICES, Entry
from fuzz.campaign.investigate import public_for
from fuzz.evaluator import WorkerConfig, WorkerFault, open_evaluator, public_version
from fuzz.protocol import Result, Verdict
from fuzz.protocol.render import describe
from fuzz.subjects import SUBJECTS, find_proxy, is_user_function
from fuzz.versions.verdicts import GROWTH, Baseline, Change, Row, VersionResult
from generators.errors import UserError
from generators.program.case import Case
from generators.program.emit import is_random
from generators.sampling.sample import sample


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
        """Start all workers before any work; gives the torch versions. Raises `UserError` for an interpreter that can't
        be used, and for a subject that none of them has."""
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


_TURNED = (Change.REGRESSED, Change.FIXED)


def make_file_tasks(entries: Mapping[Path, Entry], subjects: Sequence[str], device: str | None) -> list[Task]:
    """What is asked about case files: each under its own subject, or under `subjects`."""
    _check_device(device)
    tasks = []
    for path, entry in entries.items():
        if is_user_function(entry.subject) and not subjects:
            # A case file is data: that it names a function is no reason to import it.
            raise UserError(
                f"{path}: is about {entry.subject}, which runs code of yours: allow it with --subject {entry.subject}"
            )
        tasks += [
            Task(str(path), entry.case, subject, device or entry.device, chosen=bool(subjects))
            for subject in subjects or (entry.subject,)
        ]
    return tasks


def make_random_tasks(seed: int, cases: int, subjects: Sequence[str], device: str | None) -> list[Task]:
    """Tasks for the first `cases` random cases of a seed: under Inductor's graph passes, or under `subjects`."""
    _check_device(device)
    tasks = []
    for index in range(cases):
        case = sample(seed, index)
        cheap = find_proxy(random=is_random(case))
        name = f"case {index} of seed {seed}"
        tasks += [Task(name, case, subject, device or "cpu", chosen=bool(subjects)) for subject in subjects or (cheap,)]
    return tasks


def compare(
    tasks: Sequence[Task],
    interpreters: Interpreters,
    baseline: Baseline | None = None,
    limit: float = GROWTH,
    progress: Callable[[Task], None] = lambda task: None,
) -> Iterator[Row]:
    """A row for each task, as it is answered: the baseline's result, if there is one, and each interpreter's.

    What regressed or was fixed is asked again, of fresh workers. What an internal subject of torch.compile shows, users
    need not meet: a case that fails under one has a second row, under the public one.
    """
    for task in tasks:
        progress(task)
        row = _row(task, interpreters, baseline, limit)
        public = _public(task)
        if public is None or not any(result.fails for result in row.results):
            yield row
            continue
        shown = _row(public, interpreters, baseline, limit)
        yield replace(row, overruled=shown.change is not Change.UNJUDGED)
        yield shown


def _row(task: Task, interpreters: Interpreters, baseline: Baseline | None, limit: float) -> Row:
    before = () if baseline is None else (baseline.get(task.case.id, task.subject, task.device),)
    results = [interpreter.judge(task) for interpreter in interpreters.all]
    row = Row(task.name, task.case.id, task.subject, task.device, (*before, *results), limit)
    if row.change not in _TURNED:
        return row
    # The last version, and the latest one that differs from it: without either there is no change.
    judged = [place for place, result in enumerate(row.results) if result.is_judged]
    for place in (judged[-1], max(p for p in judged if row.results[p].fails is not row.results[judged[-1]].fails)):
        at = place - len(before)
        if at >= 0:
            results[at] = _confirm(results[at], interpreters.all[at].judge(task, fresh=True))
    return replace(row, results=(*before, *results))


def _confirm(first: VersionResult, second: VersionResult) -> VersionResult:
    return replace(first, steady=second.is_judged and first.fails == second.fails)


def _public(task: Task) -> Task | None:
    """The same case under the public subject that shows what this internal one does; None when users can run this one,
    or asked for it by name."""
    if task.chosen or task.subject not in SUBJECTS:
        return None
    public = public_for(task.subject, [name for name, spec in SUBJECTS.items() if spec.public])
    return None if public in (None, task.subject) else replace(task, subject=str(public))


def _check_device(device: str | None) -> None:
    if device is not None and device not in DEVICES:
        raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
