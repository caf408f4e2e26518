"""Check a proposed change of torch: `python -m triage.verify_fix ID --python P`.

As `fuzz.compare --patch`, over the examples of a bug, the corpus, and cases that are drawn.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.entry import Entry, load, load_directory, save
from corpus.files import require_writable
from corpus.ledger import Ledger
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.patched_torch import list_changed, patched_torch
from fuzz.ask.question import AnswerCache
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.study import Study
from fuzz.bug_identity import compare_outcome
from fuzz.cli import DEFAULT_WORKER, INTERRUPTED, WorkerOptions, enter
from fuzz.commands import REPORTS, STDOUT, write_json
from fuzz.durations import format_count
from fuzz.experiments import Outcome
from fuzz.known_bugs import identify, read_known_bugs
from fuzz.subjects import SUBJECTS, find_variant
from fuzz.versions import VersionChange, VersionRow, compare_all, public_version, render_table
from generators.errors import UserError
from generators.sampling.neighbours import Neighbourhood
from generators.sampling.sample import sample

PATCH = "fix.patch"
BEFORE, AFTER = "as it is", "patched"


def verify_fix(
    bug: str,
    *,
    python: str | None = None,
    cases: int = 300,
    seed: int = 0,
    worker: WorkerOptions = DEFAULT_WORKER,
    ledger: Path | None = None,
    patch: Path | None = None,
    out: Path | None = None,
    json: Path | None = None,
    quiet: bool = False,
) -> int:
    """Apply a patch to a copy of torch, and compare verdicts before and after.

    The examples of the bug must pass. Neighbours of the examples, cases of the corpus and random cases, in turn, must
    keep their verdicts, or be mended. The interpreter's own torch stays as it is.

    Parameters
    ----------
    bug
        The id of a bug in the ledger.
    python
        The interpreter, and so the torch version, to patch; by default the current one.
    cases
        The number of cases beside the examples.
    seed
        Of the neighbours and random cases.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    patch
        A unified diff with names such as a/torch/_inductor/config.py; by default docs/reports/BUG/fix.patch.
    out
        Directory for the case files of cases that changed for the worse, or that fail by no known bug, by default
        runs/fix-BUG.
    json
        File for the answer as JSON; without a name, standard output.
    quiet
        Print no progress.

    Examples
    --------
    python -m triage.verify_fix clone-plus-zero --python .venv-2.15.0/bin/python
    0: the patch holds
    1: it does not: an example still fails, or a case changed for the worse
    130: interrupted; the cases judged so far are reported
    """
    known = ledgers.load(ledger or ledgers.LEDGER)
    entry = next((one for one in known.bugs if one.id == bug), None)
    if entry is None:
        raise UserError(f"{bug!r} is not an id in {known.path}")
    patch = patch or REPORTS / bug / PATCH
    if json is not None and json != STDOUT:
        require_writable(json, "--json", is_file=True)
    device = worker.device or "cpu"
    found = Verification(bug, list_changed(patch), seed)
    examples = {path: one for path in known.examples(entry) if (one := load(path)).device == device}
    with open_versions(worker.configure(python, None), patch) as versions:
        found.torch = public_version(versions[BEFORE].hello.torch)
        is_whole = found.judge(examples, known, versions, device, cases, quiet=quiet)
    for path in found.unknown:
        if path in found.further:
            save(Entry(found.further[path].case), out or Path("runs") / f"fix-{bug}")
    if json is None or not write_json(found.as_data(), json):
        print("\n".join(found.describe()))  # noqa: T201 - the answer of a command
    return int(bool(found.misses)) if is_whole else INTERRUPTED


@contextmanager
def open_versions(config: WorkerConfig, patch: Path) -> Iterator[dict[str, Evaluator]]:
    """Workers of a torch as it is, and with a patch."""
    with patched_torch(config, patch) as patched, open_evaluator(config) as before, open_evaluator(patched) as after:
        yield {BEFORE: before, AFTER: after}


@dataclass
class Verification:
    """The cases that torch and a patched torch judged."""

    bug: str
    files: list[str]  # that the patch changes
    seed: int
    torch: str = ""
    subject: str = ""  # of the cases that are drawn
    examples: list[VersionRow] = field(default_factory=list)
    further: dict[Path, Entry] = field(default_factory=dict)  # beside the examples, by their names in rows
    rows: list[VersionRow] = field(default_factory=list)  # of those that both judged
    reasons: Counter[str] = field(default_factory=Counter)  # why some of these fail: a bug of the ledger, or a verdict
    unknown: list[Path] = field(default_factory=list)  # that changed for the worse, or fail by no bug of the ledger

    def judge(
        self,
        examples: Mapping[Path, Entry],
        known: Ledger,
        versions: Mapping[str, Evaluator],
        device: str,
        cases: int,
        *,
        quiet: bool,
    ) -> bool:
        """Compare the examples and, if one is fixed, further cases. Returns whether nobody interrupted it."""
        tasks = [(path, one, one.subject) for path, one in examples.items()]
        self.examples.extend(compare_all(tasks, versions, device, quiet=quiet))
        fixed = next((row for row in self.examples if row.change is VersionChange.FIXED), None)
        if fixed is None:
            return True
        # Inductor's graph passes alone, if they show that the example is fixed.
        passes = _run_by_passes(fixed.subject)
        (row,) = compare_all([(fixed.path, examples[fixed.path], passes)], versions, device, quiet=True)
        self.subject = passes if row.change is VersionChange.FIXED else fixed.subject
        drawn = _list_further(examples, load_directory(known.path.parent), self.subject, self.seed, device)
        tasks = list(itertools.islice(drawn, cases))
        self.further = {path: one for path, one, _ in tasks}
        try:
            for row in compare_all(tasks, versions, device, quiet=quiet):
                is_judged = row.change not in (VersionChange.UNJUDGED, VersionChange.UNSTEADY)
                self.rows += [row] if is_judged or _is_worse(row) else []
        except KeyboardInterrupt:
            return False
        patched = AnswerCache(versions[AFTER].on(device))
        known_bugs = read_known_bugs(known, patched.hello, {})
        for row in self.rows:
            result = row.results[AFTER]
            if not result.verdict.clears:
                study = Study(patched, self.further[row.path], row.subject, result)
                found = identify(study, known_bugs)[0] if result.verdict.is_finding else None
                bug = found.bug if found else known.find_case(study.case.id)
                self.reasons[bug.id if bug else str(result.verdict)] += 1
                self.unknown += [] if bug else [row.path]
        self.unknown += [row.path for row in self.worse]
        return True

    @property
    def n_passing(self) -> int:
        """How many of the further cases pass with the patch."""
        return sum(row.results[AFTER].verdict.clears for row in self.rows)

    @property
    def worse(self) -> list[VersionRow]:
        """The rows that pass before and not after, or that fail in another way."""
        return [row for row in (*self.examples, *self.rows) if _is_worse(row)]

    @property
    def misses(self) -> list[str]:
        """Why the patch does not hold, in lines; none if it holds."""
        failing = [row.path.name for row in self.examples if row.results[AFTER].verdict.is_finding]
        lines = [f"still fails: {', '.join(failing)}"] if failing else []
        if not self.subject:
            lines.append("no example fails before and passes after")
        return [*lines, *([f"{format_count(len(self.worse), 'case')} changed for the worse"] if self.worse else [])]

    def as_data(self) -> dict[str, Any]:
        """The answer for JSON, and for the report."""
        return {
            "bug": self.bug,
            "torch": self.torch,
            "files": self.files,
            "examples": {row.path.name: row.change.value for row in self.examples},
            "subject": self.subject,
            "seed": self.seed,
            "cases": len(self.rows),
            "passing": self.n_passing,
            "failing": dict(self.reasons.most_common()),
            "worse": {str(row.path): [one.verdict.value for one in row.results.values()] for row in self.worse},
            "holds": not self.misses,
            "misses": self.misses,
        }

    def describe(self) -> list[str]:
        """The answer for a terminal, in lines."""
        rows = [*self.examples, *self.rows]
        further = format_count(len(self.rows), "further case")
        return [
            render_table(rows, (BEFORE, AFTER), len(rows)),
            f"torch {self.torch}, {', '.join(self.files)}: {self.n_passing} of {further} pass with the patch",
            *(self.misses or ["the patch holds"]),
        ]


def _run_by_passes(subject: str) -> str:
    """The subject that runs Inductor's graph passes alone, else as `subject` does, if there is one."""
    return (find_variant(subject, backend="passes", public=False) if subject in SUBJECTS else None) or subject


def _list_further(
    examples: Mapping[Path, Entry], corpus: Mapping[Path, Entry], subject: str, seed: int, device: str
) -> Iterator[tuple[Path, Entry, str]]:
    """Neighbours of the examples, cases of the corpus and random cases, in turn: each once, with its subject."""
    near = Neighbourhood({one.case.id: one.case for one in examples.values()})
    known, seen = iter(corpus.items()), {one.case.id for one in examples.values()}
    for index in itertools.count():
        turn = [(Path(f"neighbour {index}"), Entry(near.sample(seed, index)), subject)]
        turn += [(path, one, _run_by_passes(one.subject)) for path, one in itertools.islice(known, 1)]
        turn += [(Path(f"sample {index}"), Entry(sample(seed, index, device=device)), subject)]
        for task in turn:
            if task[1].case.id not in seen:
                seen.add(task[1].case.id)
                yield task


def _is_worse(row: VersionRow) -> bool:
    before, after = row.results[BEFORE], row.results[AFTER]
    if row.change is VersionChange.UNSTEADY:
        return False
    outcome = compare_outcome(after, before)
    if before.verdict.is_finding:
        return after.verdict.is_finding and outcome not in (Outcome.PASSES, Outcome.FAILS_ALIKE)
    return before.verdict.clears and outcome is not Outcome.PASSES


if __name__ == "__main__":
    enter(verify_fix, "triage.verify_fix")
