"""From what is asked to a finished comparison: progress, interruption, and what is written where."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz.evaluator import WorkerConfig
from fuzz.versions import table
from fuzz.versions.comparison import Interpreters, Task, compare
from fuzz.versions.table import Comparison
from fuzz.versions.verdicts import GROWTH, Baseline, Change, Row, VersionResult, render_baseline
from generators.errors import UserError

_PROGRESS_SECONDS = 5.0
_WORTH_A_FILE = (Change.REGRESSED, Change.GREW, Change.FIXED, Change.FAILS)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What to write besides the text on stdout. `record`: the verdicts, into the case files; `kept`: a directory for
    random cases that changed; `limit`: the growth that counts."""

    json: Path | None = None
    markdown: Path | None = None
    save_baseline: Path | None = None
    record: bool = False
    kept: Path | None = None
    limit: float = GROWTH

    def check(self) -> None:
        """Raises `UserError` for a file that can't be written, before the work."""
        for option, file in (("json", self.json), ("markdown", self.markdown), ("save-baseline", self.save_baseline)):
            if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
                raise UserError(f"--{option} {file}: can't be written: {file.parent} is not a directory")


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a comparison ended; `text` is for stdout."""

    text: str
    regressed: bool
    interrupted: bool
    faults: bool


def run_comparison(
    tasks: Sequence[Task], configs: Sequence[WorkerConfig], before: Baseline | None, output: OutputOptions
) -> RunResult:
    """Compare, and write the files asked for. Ctrl-C ends it with what is done. Raises `UserError`."""
    output.check()
    rows: list[Row] = []
    own = {task.name: task.subject for task in tasks}
    interrupted = False
    with Interpreters(configs) as interpreters:
        torches = interpreters.start(tasks)
        versions = _label_versions(torches, configs, before)
        try:
            for row in compare(tasks, interpreters, before, output.limit, _Progress(len(tasks))):
                rows.append(row)
                if output.record and row.subject == own[row.name]:
                    _record_verdicts(row, dict(zip(torches, row.results[-len(torches) :], strict=True)))
        except KeyboardInterrupt:
            interrupted = True
    comparison = Comparison(versions, tuple(rows), len(tasks) if interrupted else 0)
    text = "\n".join([table.text(comparison), *_write_files(comparison, tasks, output, torches[-1])])
    return RunResult(
        text,
        any(row.change is Change.REGRESSED for row in rows),
        interrupted,
        any(result.fault for row in rows for result in row.results),
    )


def _write_files(comparison: Comparison, tasks: Sequence[Task], output: OutputOptions, torch: str) -> list[str]:
    """Write the files; what is to be said of them."""
    lines = []
    if output.json is not None:
        _write(output.json, table.data(comparison))
    if output.markdown is not None:
        _write(output.markdown, table.markdown(comparison))
    if output.save_baseline is not None and comparison.cut:
        lines.append(f"{output.save_baseline} was not written: a baseline needs all cases")
    elif output.save_baseline is not None:
        _write(output.save_baseline, render_baseline(torch, comparison.rows))
    if output.kept is not None:
        cases = {task.case.id: task.case for task in tasks}
        for row in comparison.rows:
            if row.change in _WORTH_A_FILE:
                note = f"Random {row.name}, under {row.subject}: {row.change}."
                path = output.kept / f"{str(row.change).replace(' ', '-')}-{row.case}{corpus_entry.SUFFIX}"
                lines.append(f"{row.name}: {corpus_entry.write(Entry(cases[row.case], note=note), path)}")
    return lines


def _record_verdicts(row: Row, results: dict[str, VersionResult]) -> None:
    verdicts = {torch: str(result.verdict) for torch, result in results.items() if result.is_judged and result.steady}
    if verdicts:
        corpus_entry.record_seen(Path(row.name), verdicts)


def _label_versions(
    torches: Sequence[str], configs: Sequence[WorkerConfig], before: Baseline | None
) -> tuple[str, ...]:
    """What the versions are called: by their interpreters too, where two are of one torch."""
    labels = [
        f"{torch} ({config.python})" if torches.count(torch) > 1 else torch
        for torch, config in zip(torches, configs, strict=True)
    ]
    labels = [f"{label} {place}" if labels.count(label) > 1 else label for place, label in enumerate(labels, 1)]
    return (*([] if before is None else [f"baseline {before.torch}"]), *labels)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from error


class _Progress:
    """Says on stderr how far it is, every few seconds."""

    def __init__(self, cases: int) -> None:
        self._cases, self._begun, self._said = cases, 0, -_PROGRESS_SECONDS

    def __call__(self, task: Task) -> None:
        self._begun += 1
        if time.monotonic() - self._said >= _PROGRESS_SECONDS:
            self._said = time.monotonic()
            _say(f"{self._begun} of {self._cases}: {task.name} under {task.subject}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
