"""Findings of campaigns and in case files, each once, wherever it was met."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import SUFFIX, Entry
from fuzz.evaluator import public_version
from fuzz.run_store import RESULTS_FILE, FindingRow
from fuzz.run_summary import RunSummary
from generators.errors import UserError


@dataclass(frozen=True, slots=True)
class Finding:
    """A minimal failing case, its file, and the run it is of (None: of a case file alone). `met`: how many failures it
    explained; dates are days, "" where no campaign told them; `versions` those of torch."""

    entry: Entry
    path: Path
    run: Path | None = None
    met: int = 1
    first_seen: str = ""
    last_seen: str = ""
    versions: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """The id of its case."""
        return self.entry.case.id


def gather(paths: Sequence[Path]) -> list[Finding]:
    """The findings of these run directories, case files and directories of case files, ordered by id, each once.

    Failures that only internal subjects show are none. Raises UserError for a path that is nothing of these.
    """
    if not paths:
        raise UserError(f"name at least one run directory, case file (*{SUFFIX}) or directory of case files")
    of_runs: list[Finding] = []
    of_files: list[Finding] = []
    for path in paths:
        if (path / RESULTS_FILE).is_file():
            of_runs += _of_run(path)
        elif path.is_dir() or path.name.endswith(SUFFIX):
            of_files += _of_files(path)
        else:
            raise UserError(
                f"{path}: no run directory (it has no {RESULTS_FILE}), case file (*{SUFFIX}) or directory of them"
            )
    return _merge(of_runs, of_files)


def read_row(row: FindingRow, entry: Entry, run: Path, torch: str) -> Finding:
    """The finding that a row of a run's store tells, whose `entry` is read; `torch`: what the run was last of."""
    if row.kind == "new" and entry.found is not None:
        torch = entry.found.torch or torch
    first = row.first_seen if row.kind == "new" else row.last_seen  # a known one is in the store from the start
    return Finding(entry, Path(row.file), run, row.count, _day(first), _day(row.last_seen), _versions(torch))


def _of_run(path: Path) -> Iterator[Finding]:
    run = RunSummary.load(path)
    for row in run.findings:
        if row.kind != "internal":
            yield read_row(row, corpus_entry.loads(row.entry, row.file), path, run.torch)


def _of_files(path: Path) -> Iterator[Finding]:
    entries = corpus_entry.load_files([path])
    if not entries:
        raise UserError(
            f"{path}: neither a run directory (it has no {RESULTS_FILE}) nor one with case files (*{SUFFIX}) in it"
        )
    for file, entry in entries.items():
        if entry.expectation.status == "known":
            found = entry.found
            day = found.date[:10] if found else ""
            yield Finding(entry, file, None, 1, day, day, _versions(found.torch if found else ""))


def _merge(of_runs: Iterable[Finding], of_files: Iterable[Finding]) -> list[Finding]:
    """Each finding once. Failures of several runs add up; a file beside them is the same failure told again."""
    merged: dict[str, Finding] = {}
    for finding in [*of_runs, *of_files]:
        other = merged.get(finding.id)
        merged[finding.id] = finding if other is None else _join(other, finding)
    return [merged[key] for key in sorted(merged)]


def _join(one: Finding, other: Finding) -> Finding:
    # Which path and run is told must not depend on the order they were named in.
    kept = min(one, other, key=lambda finding: (finding.run is None, str(finding.run), str(finding.path)))
    days = sorted(filter(None, (one.first_seen, other.first_seen, one.last_seen, other.last_seen)))
    met = one.met + other.met if one.run != other.run and other.run and one.run else max(one.met, other.met)
    return replace(
        kept,
        met=met,
        first_seen=days[0] if days else "",
        last_seen=days[-1] if days else "",
        versions=one.versions | other.versions,
    )


def _versions(torch: str) -> frozenset[str]:
    return frozenset([public_version(torch)] if torch else [])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
