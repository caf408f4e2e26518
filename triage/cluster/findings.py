"""Findings of campaigns and in case files, each once, wherever they were met."""

from collections.abc import Iterator, Sequence
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
    """A minimal failing case and its file."""

    entry: Entry
    path: Path
    run: Path | None = None
    """The run directory; None of a case file alone."""
    met: int = 1
    """How many failures it explained."""
    first_seen: str = ""
    last_seen: str = ""
    """Days, "" where no campaign told them."""
    versions: frozenset[str] = frozenset()
    """Of torch."""

    @property
    def id(self) -> str:
        """The id of its case."""
        return self.entry.case.id


def gather(paths: Sequence[Path]) -> list[Finding]:
    """The findings of these run directories, case files and directories of case files, ordered by id, each once.

    Failures that only internal subjects show are left out. Failures of several runs add up; a file beside them is the
    same failure told again. Raises UserError for any other path.
    """
    if not paths:
        raise UserError(f"name at least one run directory, case file (*{SUFFIX}) or directory of case files")
    merged: dict[str, Finding] = {}
    for finding in (finding for path in paths for finding in _read(path)):
        other = merged.get(finding.id)
        merged[finding.id] = finding if other is None else _join(other, finding)
    return [merged[key] for key in sorted(merged)]


def read_row(row: FindingRow, entry: Entry, run: Path, torch: str) -> Finding:
    """The finding in a row of a run's store, whose `entry` is read; `torch`: the last version of the run."""
    if row.kind == "new" and entry.found is not None:
        torch = entry.found.torch or torch
    first = row.first_seen if row.kind == "new" else row.last_seen  # a known finding is in the store from the start
    return Finding(entry, Path(row.file), run, row.count, _day(first), _day(row.last_seen), _versions(torch))


def _read(path: Path) -> Iterator[Finding]:
    if (path / RESULTS_FILE).is_file():
        run = RunSummary.load(path)
        rows = (row for row in run.findings if row.kind != "internal")
        yield from (read_row(row, corpus_entry.loads(row.entry, row.file), path, run.torch) for row in rows)
        return
    if not path.is_dir() and not path.name.endswith(SUFFIX):
        raise UserError(
            f"{path}: no run directory (it has no {RESULTS_FILE}), case file (*{SUFFIX}) or directory of them"
        )
    entries = corpus_entry.load_files([path])
    if not entries:
        raise UserError(
            f"{path}: neither a run directory (it has no {RESULTS_FILE}) nor one with case files (*{SUFFIX}) in it"
        )
    for file, entry in entries.items():
        if entry.expectation.status == "known":
            day, torch = (entry.found.date[:10], entry.found.torch) if entry.found else ("", "")
            yield Finding(entry, file, None, 1, day, day, _versions(torch))


def _join(one: Finding, other: Finding) -> Finding:
    # The order of paths must not matter.
    kept = min(one, other, key=lambda finding: (finding.run is None, str(finding.run), str(finding.path)))
    days = sorted(filter(None, (one.first_seen, other.first_seen, one.last_seen, other.last_seen)))
    met = one.met + other.met if one.run != other.run and other.run and one.run else max(one.met, other.met)
    first, last = (days[0], days[-1]) if days else ("", "")
    return replace(kept, met=met, first_seen=first, last_seen=last, versions=one.versions | other.versions)


def _versions(torch: str) -> frozenset[str]:
    return frozenset([public_version(torch)] if torch else [])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
