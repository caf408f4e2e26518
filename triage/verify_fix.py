"""Check a proposed change of torch: `python -m triage.verify_fix ID --python P`."""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.entry import Entry, load, load_directory, save
from corpus.files import require_writable
from corpus.ledger import Ledger
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.attribution.decide import find_decided_bug
from fuzz.attribution.study import Study
from fuzz.bug_identity import PASSING, compare_outcome
from fuzz.cli import DEFAULT_WORKER, INTERRUPTED, WorkerOptions, enter, ignore_lost_output
from fuzz.commands import REPORTS, STDOUT, write_json
from fuzz.durations import format_count
from fuzz.experiments import Outcome
from fuzz.protocol import CoverageKind, Verdict
from fuzz.subjects import SUBJECTS, find_variant
from fuzz.versions import Row, VersionChange, compare_versions, public_version, render_table
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.neighbours import Neighbourhood
from generators.sampling.sample import sample
from triage.patched_torch import make_patched_torch

PATCH = "fix.patch"
BEFORE, AFTER = "as it is", "patched"
_CHEAPER = ("eager", "aot_eager", "passes")
"""Backends that run a part of the compiler, the cheapest first."""
_DRAWN = 20
"""Draws for each case that is wanted, before the search for cases ends."""


@dataclass
class Verification:
    """The cases that torch and a patched torch judged, and under what subject further cases ran."""

    files: list[str]
    is_marked: bool  # whether cases tell that they run changed lines
    subject: str
    examples: list[Row]
    reached: list[Row] = field(default_factory=list)  # further cases that run changed lines, and that both judged
    reasons: Counter[str] = field(default_factory=Counter)  # why some of these fail as before: a bug, or a verdict

    @property
    def n_passing(self) -> int:
        """How many of the further cases pass with the patch."""
        return sum(row.results[AFTER].verdict in PASSING for row in self.reached)

    @property
    def changed(self) -> list[Row]:
        """The rows that pass before and not after, or that fail in another way."""
        return [row for row in (*self.examples, *self.reached) if _is_worse(row)]

    def find_misses(self, wanted: int) -> list[str]:
        """Why the patch does not hold, in lines; none if it holds."""
        failing = [row.path.name for row in self.examples if row.results[AFTER].verdict.is_finding]
        lines = [f"still fails: {', '.join(failing)}"] if failing else []
        if not any(row.change is VersionChange.FIXED for row in self.examples):
            lines.append("no example fails before and passes after")
        lines += [f"{format_count(len(self.changed), 'case')} changed for the worse"] if self.changed else []
        found = len(self.reached)
        return [*lines, *([f"only {found} of {wanted} cases run the changed lines"] if found < wanted else [])]


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

    The examples of the bug must pass. Cases of the corpus, neighbours of the examples and random cases that run the
    changed lines must keep their verdicts, or be mended. The interpreter's own torch stays as it is.

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
    1: it does not: an example still fails, a case changed for the worse, or too few cases run the changed lines
    130: interrupted; the cases judged so far are reported
    """
    known = ledgers.load(ledger or ledgers.LEDGER)
    entry = next((one for one in known.bugs if one.id == bug), None)
    if entry is None:
        raise UserError(f"{bug!r} is not an id in {known.path}")
    patch = patch or REPORTS / bug / PATCH
    if not patch.is_file():
        raise UserError(f"{patch}: no such file")
    if json is not None and json != STDOUT:
        require_writable(json, "--json", is_file=True)
    config, code = worker.configure(python, None), 0
    with tempfile.TemporaryDirectory(prefix="attnfuzz-fix-") as scratch, ExitStack() as stack:
        torch = Path(scratch) / "patched"
        files, is_marked = make_patched_torch(patch, config.python, torch)
        path = f"{torch}:{config.environment()['PYTHONPATH']}"
        # Nothing is written beside the files of the other torch, and no cache of compiled code is shared with it.
        variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/cache"}
        versions = {
            label: stack.enter_context(open_evaluator(one, remember=True))
            for label, one in ((BEFORE, config), (AFTER, replace(config, variables=tuple(variables.items()))))
        }
        version = public_version(versions[BEFORE].hello.torch)
        device = worker.device or "cpu"
        examples = {path: one for path in known.examples(entry) if (one := load(path)).device == device}
        found = Verification(files, is_marked, *_compare_examples(examples, versions))
        search = Search(found, seed, device, versions, [one.case for one in examples.values()])
        if any(row.change is VersionChange.FIXED for row in found.examples):
            try:
                for row in search.find(load_directory(known.path.parent), cases):
                    if not quiet:
                        with ignore_lost_output():
                            told = f"{len(found.reached)} of {cases}: {row.path}: {row.results[AFTER].verdict}"
                            print(told, file=sys.stderr, flush=True)  # noqa: T201 - progress
            except KeyboardInterrupt:
                code = INTERRUPTED
        unknown = found.changed
        for row in () if code else found.reached:
            if row.results[AFTER].verdict not in PASSING:
                reason = _find_reason(row, search.cases[row.path], versions[AFTER].on(device), known)
                found.reasons[reason] += 1
                unknown += [row] * (reason in {*Verdict})
        for row in unknown:
            if row.path in search.cases:
                save(Entry(search.cases[row.path]), out or Path("runs") / f"fix-{bug}")
    misses = found.find_misses(0 if code else cases)
    if json is None or not write_json(as_data(found, bug, version, seed, misses), json):
        rows = [*found.examples, *(row for row in found.reached if BEFORE in row.results)]
        text = f"{render_table(rows, versions, len(rows))}\n{_summarize(found, version, misses)}"
        print(text)  # noqa: T201 - the answer of a command
    return code or int(bool(misses))


def _compare_examples(examples: Mapping[Path, Entry], versions: Mapping[str, Evaluator]) -> tuple[str, list[Row]]:
    """The cheapest subject that shows that an example is fixed, and the rows of the examples."""
    subject, rows = "", list[Row]()
    for path, one in examples.items():
        rows.append(compare_versions(path, one, one.subject, one.device, versions))
        if not subject and rows[-1].change is VersionChange.FIXED:
            cheaper = filter(None, (_run_by(one.subject, backend) for backend in _CHEAPER))
            shows = (
                name
                for name in cheaper
                if compare_versions(path, one, name, one.device, versions).change is VersionChange.FIXED
            )
            subject = next(shows, one.subject)
    return subject, rows


def _run_by(subject: str, backend: str) -> str | None:
    """The subject that is `subject` but for its backend, if there is one."""
    return find_variant(subject, backend=backend, public=False) if subject in SUBJECTS else None


Draw = Callable[..., Case]


@dataclass
class Search:
    """Looks for cases that run the changed lines, and compares them."""

    found: Verification
    seed: int
    device: str
    versions: Mapping[str, Evaluator]
    examples: Sequence[Case]
    cases: dict[Path, Case] = field(default_factory=dict)  # by their names in rows

    def find(self, corpus: Mapping[Path, Entry], wanted: int) -> Iterator[Row]:
        """Rows of the corpus, then of neighbours of these cases and of the examples, and of random cases.

        Each comes from a source half as good as the best source, or better.
        """
        reached, seen = dict[str, Case](), {case.id for case in self.examples}
        for path, entry in corpus.items():
            if entry.case.id not in seen and len(self.found.reached) < wanted:
                seen.add(entry.case.id)
                if (
                    row := self._compare(path, entry.case, _run_by(entry.subject, "passes") or entry.subject)
                ) is not None:
                    reached[entry.case.id] = entry.case
                    yield row
        near = Neighbourhood({case.id: case for case in self.examples})
        sources: dict[str, Draw] = {"neighbour": near.sample, "sample": sample}
        sources |= {"variant": Neighbourhood(reached).sample} if reached else {}
        tried, hits = Counter(dict.fromkeys(sources, 1)), Counter(dict.fromkeys(sources, 1))
        for index, (name, draw) in product(range(wanted * _DRAWN), sources.items()):
            if len(self.found.reached) >= wanted:
                return
            case = draw(self.seed, index, device=self.device)
            best = max(hits[source] / tried[source] for source in sources)
            if case.id in seen or hits[name] / tried[name] < best / 2:
                continue
            seen.add(case.id)
            tried[name] += 1
            if (row := self._compare(Path(f"{name} {index}"), case, self.found.subject)) is not None:
                hits[name] += 1
                yield row

    def _compare(self, path: Path, case: Case, subject: str) -> Row | None:
        """The row of a case that runs the changed lines, and that torch judges; else None."""
        result = self.versions[AFTER].on(self.device).judge(case, subject)
        if self.found.is_marked and not any(item.kind is CoverageKind.CHANGED for item in result.coverage):
            return None
        if result.verdict in PASSING:  # the patch made it no worse, whatever it was before
            row = Row(path, subject, {AFTER: result})
        else:
            row = compare_versions(path, Entry(case), subject, self.device, self.versions)
            if not _is_worse(row) and row.change in (VersionChange.UNJUDGED, VersionChange.UNSTEADY):
                return None
        self.cases[path] = case
        self.found.reached.append(row)
        return row


def _find_reason(row: Row, case: Case, evaluator: Evaluator, ledger: Ledger) -> str:
    """The id of the bug of the ledger that a failure is, by the experiments of that bug; else its verdict."""
    result, bug = row.results[AFTER], ledger.find_case(case.id)
    if bug is None and result.verdict.is_finding:
        bug = find_decided_bug(Study(evaluator, Entry(case), row.subject, result), ledger)
    return str(result.verdict) if bug is None else bug.id


def _is_worse(row: Row) -> bool:
    *earlier, after = row.results.values()
    if not earlier or row.change is VersionChange.UNSTEADY:
        return False
    (before,) = earlier
    outcome = compare_outcome(after, before)
    if before.verdict.is_finding:
        return after.verdict.is_finding and outcome not in (Outcome.PASSES, Outcome.FAILS_ALIKE)
    return before.verdict in PASSING and outcome is not Outcome.PASSES


def as_data(found: Verification, bug: str, version: str, seed: int, misses: list[str]) -> dict[str, Any]:
    """The answer for JSON, and for the report."""
    return {
        "bug": bug,
        "torch": version,
        "files": found.files,
        "examples": {row.path.name: row.change.value for row in found.examples},
        "subject": found.subject,
        "seed": seed,
        "cases": len(found.reached),
        "passing": found.n_passing,
        "failing": dict(found.reasons.most_common()),
        "worse": {str(row.path): [one.verdict.value for one in row.results.values()] for row in found.changed},
        "holds": not misses,
        "misses": misses,
    }


def _summarize(found: Verification, version: str, misses: list[str]) -> str:
    ran = "run the changed lines" if found.is_marked else "ran (the change is outside of all functions)"
    cases = format_count(len(found.reached), "further case")
    head = f"torch {version}, {', '.join(found.files)}: {cases} {ran}, {found.n_passing} pass, under {found.subject}"
    return "\n".join([head, *misses] if misses else [head, "the patch holds"])


if __name__ == "__main__":
    enter(verify_fix, "triage.verify_fix")
