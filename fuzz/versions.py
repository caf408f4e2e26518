"""The same cases under several torch versions, each in workers of its own: what changed."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.files import require_writable
from fuzz.cli import INTERRUPTED, ignore_lost_output
from fuzz.durations import format_count
from fuzz.evaluator import Evaluator, open_evaluator, public_version
from fuzz.expectation import require_allowed
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Raised, Refusal, Word
from fuzz.protocol.render import describe
from fuzz.worker_config import WorkerConfig
from generators.errors import UserError
from generators.program.case import Case

_LONGEST = 300


class Change(Word):
    """What became of a case from the first version to the last, in the order in which it is told."""

    REGRESSED = "regressed", "passes in an earlier version and fails in the last one"
    FIXED = "fixed", "fails in an earlier version and passes in the last one"
    FAILS = "fails in all", "a finding in every version that could judge it"
    UNSTEADY = "not reproducible", "a fresh worker contradicts the first one, so versions are not compared"
    UNJUDGED = "not compared", "fewer than two versions could judge it"
    SAME = "no change", "passes in all"


@dataclass(frozen=True, slots=True)
class Task:
    """A case to be judged under one subject on one device. `name`: its file."""

    name: str
    case: Case
    subject: str
    device: str


@dataclass(frozen=True, slots=True)
class Version:
    """A torch to compare, as it is called, and its workers."""

    label: str
    torch: str
    evaluator: Evaluator


@dataclass(frozen=True, slots=True)
class Row:
    """A case under one subject in all versions, first to last. `reproduced`: no fresh worker disagreed."""

    task: Task
    results: tuple[SubjectResult, ...]
    reproduced: bool = True

    @property
    def judged(self) -> list[tuple[int, SubjectResult]]:
        """The results of the versions that could judge it, with their places."""
        return [(place, one) for place, one in enumerate(self.results) if one.verdict is not Verdict.SKIPPED]

    @property
    def change(self) -> Change:
        """What became of the case."""
        fails = [one.verdict.is_finding for _, one in self.judged]
        if len(fails) < 2:
            return Change.UNJUDGED
        if not self.reproduced:
            return Change.UNSTEADY
        if all(fails):
            return Change.FAILS
        if any(fails):
            return Change.REGRESSED if fails[-1] else Change.FIXED
        return Change.SAME


def make_file_tasks(entries: Mapping[Path, Entry], subjects: Sequence[str], device: str | None) -> list[Task]:
    """What is asked about case files: each under its own subject, or under `subjects`."""
    tasks = []
    for path, entry in entries.items():
        if not subjects:
            require_allowed(entry.subject, (), str(path))
        wanted, place = subjects or (entry.subject,), device or entry.device
        tasks += [Task(str(path), entry.case, subject, place) for subject in wanted]
    return tasks


def run_comparison(
    tasks: Sequence[Task], configs: Sequence[WorkerConfig], *, record: bool = False, quiet: bool = False
) -> tuple[str, int, Exception | None]:
    """Compare; gives what to print, the exit code, and an exception to be raised after that.

    Whatever ends it, it tells what is done. `configs`: in the order in which a person upgrades; `record`: write
    verdicts into the case files; `quiet`: without progress. Raises `UserError`.
    """
    for file in {Path(task.name) for task in tasks} if record else ():
        require_writable(file, "--record", is_file=True)
    rows: list[Row] = []
    interrupted, error = False, None
    with ExitStack() as stack:
        versions = _start_all([stack.enter_context(open_evaluator(config)) for config in configs], tasks)
        try:
            for number, task in enumerate(tasks, 1):
                if not quiet:
                    with ignore_lost_output():
                        sys.stderr.write(f"{number} of {len(tasks)}: {task.name} under {task.subject}\n")
                        sys.stderr.flush()
                rows.append(compare(task, versions))
                if record and rows[-1].reproduced:
                    verdicts = {versions[place].torch: spell_verdict(one) for place, one in rows[-1].judged}
                    corpus_entry.record_seen(Path(task.name), verdicts)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as raised:  # noqa: BLE001 - raised when the rest is printed
            error = raised
    labels = [version.label for version in versions]
    text = render_text(rows, labels, len(tasks))
    is_worse = any(row.change is Change.REGRESSED for row in rows)
    return text, INTERRUPTED if interrupted else int(is_worse), error


def _start_all(evaluators: Sequence[Evaluator], tasks: Sequence[Task]) -> list[Version]:
    """Start all workers before any work. Raises `UserError` for an interpreter that can't be used, and for a subject
    that none of them has."""
    hellos = [evaluator.hello for evaluator in evaluators]
    known = {subject for hello in hellos for subject in hello.subjects}
    unknown = next((task.subject for task in tasks if known and task.subject not in known), None)
    if unknown is not None:
        raise UserError(f"unknown subject {unknown!r}; there are {', '.join(sorted(known))}")
    labels = torches = [public_version(hello.torch) for hello in hellos]
    if len(set(torches)) < len(torches):
        places = zip(torches, evaluators, strict=True)
        labels = [f"{number}: {torch} ({one.config.python})" for number, (torch, one) in enumerate(places, 1)]
    return [Version(*version) for version in zip(labels, torches, evaluators, strict=True)]


def compare(task: Task, versions: Sequence[Version]) -> Row:
    """A row for a task: what each version gives. What regressed or was fixed is asked again, of fresh workers."""
    row = Row(task, tuple(judge(version, task) for version in versions))
    if row.change not in (Change.REGRESSED, Change.FIXED):
        return row
    # The last version, and the latest one that differs from it: without either there is no change.
    fails = {place: one.verdict.is_finding for place, one in row.judged}
    last = max(fails)
    places = (last, max(place for place in fails if fails[place] is not fails[last]))
    again = (judge(versions[place], task, fresh=True) for place in places)
    agree = (one.verdict.is_finding is fails[place] for place, one in zip(places, again, strict=True))
    return Row(task, row.results, reproduced=all(agree))


def judge(version: Version, task: Task, *, fresh: bool = False) -> SubjectResult:
    """What a version makes of a case; a worker that is lost is a verdict too. `fresh`: ask a new worker."""
    try:
        evaluator = version.evaluator.on(task.device)
        if task.subject not in evaluator.hello.subjects:
            return _skip(task, f"torch {version.torch} has no {task.subject}")
        result = evaluator.evaluate(task.case, (task.subject,), fresh=fresh)
    except UserError as error:
        return _skip(task, str(error))
    return result.results[0] if result.results else _skip(task, f"eager refuses it: {result.rejected}")


def _skip(task: Task, why: str) -> SubjectResult:
    return SubjectResult(task.subject, Verdict.SKIPPED, failure=NotTaken(Refusal.NO_VERDICT, why))


def spell_verdict(result: SubjectResult) -> str:
    """A verdict as case files record it: with the exception if one was raised."""
    return f"{result.verdict} {result.failure.error}" if isinstance(result.failure, Raised) else str(result.verdict)


def render_text(rows: Sequence[Row], versions: Sequence[str], wanted: int) -> str:
    """The comparison for a terminal. Cases without change are only counted. `wanted`: how many there were."""
    lines, counts = [], []
    for change in Change:
        found = [row for row in rows if row.change is change]
        counts += [f"{len(found)} {change}"] if found else []
        if found and change is not Change.SAME:
            lines.append(f"{change} ({len(found)}): {change.explanation}")
            lines += [line for row in found for line in describe_row(row, versions)]
            lines.append("")
    cut = f" of {wanted}, then interrupted" if len(rows) < wanted else ""
    head = f"{format_count(len(rows), 'comparison')}{cut}, torch {', '.join(versions)}"
    return "\n".join([*lines, f"{head}: {', '.join(counts) or 'none'}"])


def describe_row(row: Row, versions: Sequence[str]) -> list[str]:
    """A row in lines: its verdicts, and the failure."""
    verdicts = ", ".join(f"{version} {one.verdict}" for version, one in zip(versions, row.results, strict=True))
    said = [f"  {row.task.name} under {row.task.subject}: {verdicts}"]
    # The last that fails, else the last that could not be judged.
    notable = [one for one in row.results if one.verdict is Verdict.SKIPPED]
    notable += [one for one in row.results if one.verdict.is_finding]
    if notable and (message := describe(notable[-1])):
        said.append(f"      {message if len(message) < _LONGEST else f'{message[:_LONGEST]}...'}")
    return said
