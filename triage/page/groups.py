"""What a campaign's page lists: findings, or clusters of them, each under a title and a status."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.ledger import Ledger
from fuzz.durations import format_count
from fuzz.runs import FindingRow
from triage.cluster.attributions import kept
from triage.cluster.clusters import Cluster, cluster, split
from triage.cluster.findings import of_row, torch_of
from triage.report.wording import title


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
        found = self.entry.found
        return title(self.entry.case, self.row.result, found.device if found and found.device else self.entry.device)


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


UNTOLD = "Its root cause is not told yet: python -m triage.cluster does that."

_NOTES = {
    "internal": "Shown by Inductor's own passes alone: this campaign ran no public subject that could show it.",
    "known": "Known before this campaign, which met it again.",
}


def groups_of(run: Path, findings: Sequence[Met], ledger: Ledger) -> list[Group]:
    """A group for every root cause that the ledger lists, or that `triage.cluster` told of this run, and for every finding
    whose cause nobody told: news first. Nothing is attributed here, which would need torch, and minutes."""
    met = {one.row.case_id: one for one in findings if one.row.kind != "internal"}
    torch = torch_of(run)
    listed, rest = split([of_row(one.row, one.entry, run, torch) for one in met.values()], ledger)
    groups = [_group(one, met) for one in cluster([*listed, *kept(rest)], ledger)]
    groups += [
        Group(one.title, "internal", (one,), (_NOTES["internal"],), news=False)
        for one in findings
        if one.row.kind == "internal"
    ]
    return sorted(groups, key=lambda group: not group.news)


def _group(found: Cluster, met: dict[str, Met]) -> Group:
    # The simplest that has a picture says most.
    members = tuple(sorted((met[finding.id] for finding in found.findings), key=lambda one: one.row.result.map is None))
    known = all(one.row.kind == "known" for one in members)
    bug = found.bug
    notes = []
    if found.back_in:
        notes.append(f"The ledger calls it {bug.status if bug else 'fixed'}, and it is back in torch {found.back_in}.")
    if bug:
        notes.append(f"In the ledger as {bug.id}.")
    if bug and bug.note:
        notes.append(bug.note)
    if not found.open:
        notes.append(f"CauseKey cause: {', or '.join(map(str, found.roots))}.")
        parts = ", ".join(found.parts)
        notes += (
            [f"Parts at fault, over {format_count(len(members), 'finding')}: {parts}."]
            if parts and len(members) > 1
            else []
        )
    elif not known:
        notes.append(UNTOLD)
    notes += [_NOTES["known"]] if known else []
    status = str(bug.status) if bug else "known" if known else "new"
    title = members[0].title if found.open and bug is None else found.title
    return Group(title, status, members, tuple(notes), _is_news(found, known=known))


def _is_news(found: Cluster, *, known: bool) -> bool:
    """Whether somebody has to look. What a file beside the ledger holds is known too."""
    return found.is_news and not (found.bug is None and known)
