"""From what is asked to a finished comparison: progress, interruption, and what is written where."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz.evaluator import WorkerConfig
from fuzz.versions import baseline, table
from fuzz.versions.baseline import Baseline
from fuzz.versions.comparison import compare
from fuzz.versions.interpreters import Interpreters, Question
from fuzz.versions.table import Comparison
from fuzz.versions.verdicts import GROWTH, Cell, Change, Row
from generators.errors import UserError

_PROGRESS_SECONDS = 5.0
_WORTH_A_FILE = (Change.REGRESSED, Change.GREW, Change.FIXED, Change.FAILS)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be written besides the text on stdout. `record`: the verdicts, into the case files; `kept`: a directory for
    random cases that changed."""

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
                raise UserError(f"--{option} {file}: no file can be made there: is {file.parent} a directory?")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a comparison ended; `text` is for stdout."""

    text: str
    regressed: bool
    interrupted: bool
    faults: bool


def session(
    questions: Sequence[Question], setups: Sequence[WorkerConfig], before: Baseline | None, wishes: Wishes
) -> Ending:
    """Compare, and write what is wished. Ctrl-C ends it with what is done. Raises `UserError`."""
    wishes.check()
    rows: list[Row] = []
    own = {question.name: question.subject for question in questions}
    interrupted = False
    with Interpreters(setups) as interpreters:
        torches = interpreters.start(questions)
        versions = _labels(torches, setups, before)
        try:
            for row in compare(questions, interpreters, before, wishes.limit, _Progress(len(questions))):
                rows.append(row)
                if wishes.record and row.subject == own[row.name]:
                    _record(row, dict(zip(torches, row.cells[-len(torches) :], strict=True)))
        except KeyboardInterrupt:
            interrupted = True
    told = Comparison(versions, tuple(rows), len(questions) if interrupted else 0)
    text = "\n".join([table.text(told), *_written(told, questions, wishes, torches[-1])])
    return Ending(
        text,
        any(row.change is Change.REGRESSED for row in rows),
        interrupted,
        any(cell.fault for row in rows for cell in row.cells),
    )


def _written(told: Comparison, questions: Sequence[Question], wishes: Wishes, torch: str) -> list[str]:
    """Write the files; what is to be said of them."""
    lines = []
    if wishes.json is not None:
        _write(wishes.json, table.data(told))
    if wishes.markdown is not None:
        _write(wishes.markdown, table.markdown(told))
    if wishes.save_baseline is not None and told.cut:
        lines.append(f"{wishes.save_baseline} was not written: a baseline holds all cases")
    elif wishes.save_baseline is not None:
        _write(wishes.save_baseline, baseline.text(torch, told.rows))
    if wishes.kept is not None:
        cases = {question.case.id: question.case for question in questions}
        for row in told.rows:
            if row.change in _WORTH_A_FILE:
                note = f"Random {row.name}, under {row.subject}: {row.change}."
                path = wishes.kept / f"{str(row.change).replace(' ', '-')}-{row.case}{corpus_entry.SUFFIX}"
                lines.append(f"{row.name}: {corpus_entry.write(Entry(cases[row.case], note=note), path)}")
    return lines


def _record(row: Row, cells: dict[str, Cell]) -> None:
    verdicts = {torch: str(cell.verdict) for torch, cell in cells.items() if cell.is_judged and cell.steady}
    if verdicts:
        corpus_entry.record_seen(Path(row.name), verdicts)


def _labels(torches: Sequence[str], setups: Sequence[WorkerConfig], before: Baseline | None) -> tuple[str, ...]:
    """What the versions are called: by their interpreters too, where two are of one torch."""
    labels = [
        f"{torch} ({setup.python})" if torches.count(torch) > 1 else torch
        for torch, setup in zip(torches, setups, strict=True)
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

    def __call__(self, question: Question) -> None:
        self._begun += 1
        if time.monotonic() - self._said >= _PROGRESS_SECONDS:
            self._said = time.monotonic()
            _say(f"{self._begun} of {self._cases}: {question.name} under {question.subject}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
