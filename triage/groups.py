"""What a campaign's page lists: findings, or clusters of them, each under a title and a status."""

from collections.abc import Sequence
from dataclasses import dataclass

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz.campaign.results import FindingRow
from fuzz.catalogue import is_named, kind
from fuzz.protocol import Verdict
from triage.kernel_draft import kernel_title
from triage.title import title


@dataclass(frozen=True, slots=True)
class Met:
    """A finding as a campaign stored it, and the entry its row holds."""

    row: FindingRow
    entry: Entry

    @classmethod
    def of(cls, row: FindingRow) -> "Met":
        """A row, read. Raises CaseError when it holds no case file."""
        return cls(row, corpus_entry.loads(row.entry, row.file))

    @property
    def title(self) -> str:
        """Its symptom in one line."""
        result, case = self.row.result, self.entry.case
        alone = is_named(result.subject) or kind(result.subject).attention
        if alone and result.verdict is not Verdict.EAGER_SUSPECT:
            return kernel_title(case, result.subject, result)
        found = self.entry.found
        return title(case, result, found.device if found and found.device else self.entry.device)


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one cause, the one to show first. `status` as in the ledger; `note`: what else is known, in sentences;
    `news`: somebody has to look."""

    title: str
    status: str
    findings: tuple[Met, ...]
    note: tuple[str, ...] = ()
    news: bool = True

    @property
    def count(self) -> int:
        """How many failures these findings explain."""
        return sum(met.row.count for met in self.findings)

    @property
    def first_seen(self) -> float:
        """When one was met first, in seconds since the epoch."""
        return min(met.row.first_seen for met in self.findings)

    @property
    def last_seen(self) -> float:
        """When one was met last."""
        return max(met.row.last_seen for met in self.findings)


_NOTES = {
    "internal": "Shown by Inductor's own passes alone: this campaign ran no public subject that could show it.",
    "known": "Known before this campaign, which met it again.",
}


def one_each(findings: Sequence[Met]) -> list[Group]:
    """A group for every finding, those that are new first."""
    groups = [
        Group(met.title, met.row.kind, (met,), (_NOTES[met.row.kind],) if met.row.kind in _NOTES else (), met.row.kind == "new")
        for met in findings
    ]
    order = ("new", "internal", "known")
    return sorted(groups, key=lambda group: order.index(group.status) if group.status in order else len(order))
