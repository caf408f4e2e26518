"""The same cases under several torch versions, each in workers of its own: what is asked, a row for each answer, and
what is written where."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.files import replace_file, require_writable
from fuzz.cli import FAULT, INTERRUPTED, ignore_lost_output
from fuzz.durations import format_duration
from fuzz.evaluator import Evaluator, WorkerConfig, WorkerFault, open_evaluator, public_version
from fuzz.expectation import require_allowed
from fuzz.protocol import Hello, Verdict
from fuzz.protocol.render import describe
from fuzz.versions.verdicts import Change, Comparison, Row, VersionResult, render_json, render_text
from generators.errors import UserError
from generators.program.case import Case

_PROGRESS_SECONDS = 5.0
_LOST = (Verdict.TIMEOUT, Verdict.WORKER_DIED)


@dataclass(frozen=True, slots=True)
class Task:
    """A case to be judged under one subject on one device. `name`: its file; `verdict`: of the bug recorded there."""

    name: str
    case: Case
    subject: str
    device: str
    verdict: str = ""


@cache
def _start(evaluator: Evaluator, device: str) -> Hello | UserError:
    """What the worker for a device says of itself; or why there is none, asked once."""
    try:
        return evaluator.on(device).hello
    except UserError as error:
        return error


def judge(evaluator: Evaluator, task: Task, *, fresh: bool = False) -> VersionResult:
    """What a version makes of a case; a worker that is lost is a verdict too. `fresh`: ask a new worker."""
    hello = _start(evaluator, task.device)
    if isinstance(hello, UserError):
        return VersionResult(Verdict.SKIPPED, str(hello))
    if task.subject not in hello.subjects:
        return VersionResult(Verdict.SKIPPED, f"torch {hello.torch} has no {task.subject}")
    try:
        result = evaluator.on(task.device).evaluate(task.case, (task.subject,), fresh=fresh)
    except UserError as error:
        return VersionResult(Verdict.SKIPPED, str(error))
    except WorkerFault as fault:
        return VersionResult(Verdict.SKIPPED, f"attnfuzz failed: {str(fault).splitlines()[-1].strip()}", fault=True)
    if result.rejected is not None or not result.results:
        return VersionResult(Verdict.REJECTED, f"eager refuses it: {result.rejected}")
    one = result.results[0]
    return VersionResult(one.verdict, describe(one), dict(one.numbers), one.fired)


def judge_or_repeat(evaluator: Evaluator, task: Task) -> VersionResult:
    """As `judge`. Where a worker is lost, a fresh one has the last word; lost again, it says nothing of a bug that is
    recorded with another verdict."""
    result = judge(evaluator, task)
    if result.verdict not in _LOST:
        return result
    result = judge(evaluator, task, fresh=True)
    if result.verdict not in _LOST or task.verdict in ("", result.verdict):
        return result
    return VersionResult(Verdict.SKIPPED, f"no verdict, in two workers: {result.message or result.verdict.explanation}")


def make_file_tasks(entries: Mapping[Path, Entry], subjects: Sequence[str], device: str | None) -> list[Task]:
    """What is asked about case files: each under its own subject, or under `subjects`."""
    tasks = []
    for path, entry in entries.items():
        if not subjects:
            require_allowed(entry.subject, (), str(path))
        tasks += [
            Task(str(path), entry.case, subject, device or entry.device, entry.expectation.verdict)
            for subject in subjects or (entry.subject,)
        ]
    return tasks


def compare(task: Task, evaluators: Sequence[Evaluator]) -> Row:
    """A row for a task: each interpreter's result. What regressed or was fixed is asked again, of fresh workers."""
    results = [judge_or_repeat(evaluator, task) for evaluator in evaluators]
    row = Row(task.name, task.case.id, task.subject, task.device, tuple(results))
    if row.change not in (Change.REGRESSED, Change.FIXED):
        return row
    # The last version, and the latest one that differs from it: without either there is no change.
    judged = [place for place, result in enumerate(row.results) if result.is_judged]
    for place in (judged[-1], max(p for p in judged if row.results[p].fails is not row.results[judged[-1]].fails)):
        again = judge(evaluators[place], task, fresh=True)
        results[place] = replace(results[place], reproduced=again.is_judged and again.fails == results[place].fails)
    return replace(row, results=tuple(results))


def run_comparison(
    tasks: Sequence[Task],
    configs: Sequence[WorkerConfig],
    *,
    json: Path | None = None,
    record: bool = False,
    quiet: bool = False,
) -> tuple[str, int, Exception | None]:
    """Compare, and write the files asked for; what to print, the exit code, and an exception to be raised after that.

    An interrupt ends it with what is done. `configs`: in the order in which a person upgrades; `json`: what to
    write every few seconds; `record`: write verdicts into the case files; `quiet`: without progress.

    Raises `UserError`.
    """
    if json is not None:
        require_writable(json, "--json", is_file=True)
    for file in {Path(task.name) for task in tasks} if record else ():
        require_writable(file, "--record", is_file=True)
    rows: list[Row] = []
    interrupted, error = False, None
    with ExitStack() as stack:
        evaluators = [stack.enter_context(open_evaluator(config)) for config in configs]
        torches = _start_all(evaluators, tasks)
        comparison = Comparison(_label_versions(torches, configs), rows, len(tasks))
        began, said = time.monotonic(), -math.inf
        try:
            for number, task in enumerate(tasks):
                if time.monotonic() - said >= _PROGRESS_SECONDS:
                    said = time.monotonic()
                    if not quiet:
                        _report_progress(number, len(tasks), task, said - began)
                    if json is not None and (not json.exists() or json.is_file()):
                        replace_file(json, render_json(comparison).encode())
                rows.append(compare(task, evaluators))
                if record:
                    _record_verdicts(rows[-1], dict(zip(torches, rows[-1].results, strict=True)))
            comparison = replace(comparison, cut=0)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as raised:  # noqa: BLE001 - raised when the rest is printed
            error = raised
    if json is not None:
        replace_file(json, render_json(comparison).encode())
    text = render_text(comparison)
    if interrupted:
        return text, INTERRUPTED, None
    has_faults = any(result.fault for row in rows for result in row.results)
    return text, FAULT if has_faults else int(any(row.change is Change.REGRESSED for row in rows)), error


def _report_progress(done: int, total: int, task: Task, seconds: float) -> None:
    left = f", {format_duration(seconds / done * (total - done))} left" if done else ""
    with ignore_lost_output():
        sys.stderr.write(f"{done} of {total}{left}: {task.name} under {task.subject}\n")
        sys.stderr.flush()


def _start_all(evaluators: Sequence[Evaluator], tasks: Sequence[Task]) -> list[str]:
    """Start all workers before any work; the versions of torch. Raises `UserError` for an interpreter that can't be
    used on any device, and for a subject that none of them has."""
    torches, known = [], set[str]()
    for evaluator in evaluators:
        found = [_start(evaluator, device) for device in sorted({task.device for task in tasks})]
        hellos = [hello for hello in found if isinstance(hello, Hello)]
        if not hellos:
            raise UserError(str(found[0]))
        torches.append(public_version(hellos[0].torch))
        known.update(*(hello.subjects for hello in hellos))
    unknown = next((task.subject for task in tasks if known and task.subject not in known), None)
    if unknown is not None:
        raise UserError(f"unknown subject {unknown!r}; there are {', '.join(sorted(known))}")
    return torches


def _record_verdicts(row: Row, results: dict[str, VersionResult]) -> None:
    verdicts = {
        torch: str(result.verdict) for torch, result in results.items() if result.is_judged and result.reproduced
    }
    if verdicts:
        corpus_entry.record_seen(Path(row.name), verdicts)


def _label_versions(torches: Sequence[str], configs: Sequence[WorkerConfig]) -> tuple[str, ...]:
    """What the versions are called: by their places too, where two are of one torch."""
    numbered = (
        f"{number}: {torch} ({config.python})"
        for number, (torch, config) in enumerate(zip(torches, configs, strict=True), 1)
    )
    return tuple(numbered if len(set(torches)) < len(torches) else torches)
