"""Ask all versions about all cases, and what is asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from corpus.entry import DEVICES, Entry
from fuzz.campaign.investigate import public_for
from fuzz.subjects import SUBJECTS, find_proxy, is_named
from fuzz.versions.baseline import Baseline
from fuzz.versions.interpreters import Interpreters, Task
from fuzz.versions.verdicts import GROWTH, Change, Row, VersionResult
from generators.errors import UserError
from generators.program.emit import is_random
from generators.sampling.sample import sample

_TURNED = (Change.REGRESSED, Change.FIXED)


def make_file_tasks(entries: Mapping[Path, Entry], subjects: Sequence[str], device: str | None) -> list[Task]:
    """What is asked about case files: each under its own subject, or under `subjects`."""
    _check_device(device)
    tasks = []
    for path, entry in entries.items():
        if is_named(entry.subject) and not subjects:
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

    What regressed or was fixed is asked again, of fresh workers. What an internal subject of torch.compile shows, users need
    not meet: a case that fails under one has a second row, under the public one.
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
    before = () if baseline is None else (baseline.result(task),)
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
    """The same case under the public subject that shows what this internal one does; None when users can run this one, or
    asked for it by name."""
    if task.chosen or task.subject not in SUBJECTS:
        return None
    public = public_for(task.subject, [name for name, spec in SUBJECTS.items() if spec.public])
    return None if public in (None, task.subject) else replace(task, subject=str(public))


def _check_device(device: str | None) -> None:
    if device is not None and device not in DEVICES:
        raise UserError(f"device {device!r} is not one of {', '.join(DEVICES)}")
