"""The bugs of the ledger with what their examples show: in which releases, how, and which example shows it best."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from corpus.entry import Entry, load
from corpus.ledger import Bug, Ledger
from corpus.versions import sort_versions, split_version
from fuzz.versions import list_failing, read_verdicts
from triage.report.failing_run import WITHOUT_NUMBERS


@dataclass(frozen=True, slots=True)
class ListedBug:
    """A bug of the ledger. Releases are versions of its project's package, oldest first."""

    bug: Bug
    examples: Mapping[Path, Entry]
    newest: str
    """The newest release of the package that any example of the ledger was run with."""

    @property
    def tried(self) -> list[str]:
        """The releases that an example was run with."""
        return sort_versions(version for entry in self.examples.values() for version in read_verdicts(entry))

    @property
    def failing(self) -> list[str]:
        """The releases in which an example fails as it was found to."""
        return sort_versions(version for entry in self.examples.values() for version in list_failing(entry))

    @property
    def is_live(self) -> bool:
        """Whether the newest release has it."""
        return self.newest in self.failing

    @property
    def example(self) -> Path:
        """The first example, in the ledger's order, that fails in the last of `failing`."""
        last = self.failing[-1:]
        failing = (path for path, entry in self.examples.items() if {*last} & {*list_failing(entry)})
        return next(failing, next(iter(self.examples)))

    @property
    def entry(self) -> Entry:
        """The contents of `example`."""
        return self.examples[self.example]

    @property
    def is_silent(self) -> bool:
        """Whether `example` gives wrong values, strides or state without an error."""
        return self.entry.verdict not in WITHOUT_NUMBERS


def list_bugs(ledger: Ledger) -> list[ListedBug]:
    """The bugs of a ledger that have examples. Raises `CaseError`."""
    examples = {bug: {path: load(path) for path in ledger.examples(bug)} for bug in ledger.bugs if bug.cases}
    tried = sort_versions(
        version for found in examples.values() for entry in found.values() for version in read_verdicts(entry)
    )
    newest = {split_version(version)[0]: version for version in tried}
    return [ListedBug(bug, found, newest.get(bug.project.package, "")) for bug, found in examples.items()]


def find_regression(entry: Entry) -> tuple[str, str] | None:
    """The last good and the first bad release that a case was run with, if it fails in the newest of these."""
    verdicts, failing = read_verdicts(entry), list_failing(entry)
    tried = sort_versions(verdicts)
    changes = [(good, bad) for good, bad in pairwise(tried) if bad in failing and good not in failing]
    is_live = failing[-1:] == tried[-1:]
    return changes[-1] if is_live and changes and verdicts[changes[-1][0]].clears else None
