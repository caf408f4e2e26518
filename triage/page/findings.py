"""The findings that a campaign's page lists, in groups of one cause, each under a title and a status."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from corpus import entry as corpus_entry
from corpus.entry import Entry
from corpus.ledger import Ledger
from fuzz.durations import format_count
from fuzz.error_location import describe_where
from fuzz.expectation import list_commands, list_numbers
from fuzz.protocol import Verdict
from fuzz.protocol.failures import RelationBroken
from fuzz.protocol.render import MEANINGS, describe
from fuzz.run_store import FindingRow
from generators.program.emit import source
from triage.cluster.attributions import load_attributed
from triage.cluster.clusters import Cluster, cluster, split_listed
from triage.cluster.findings import read_row, read_torch
from triage.report import picture
from triage.report.wording import title


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding as a campaign stored it, and the entry its row holds."""

    row: FindingRow
    entry: Entry

    @classmethod
    def read(cls, row: FindingRow) -> "StoredFinding":
        """Parse a row. Raises CaseError when it holds no case file."""
        return cls(row, corpus_entry.loads(row.entry, row.file))

    @property
    def title(self) -> str:
        """Its symptom in one line."""
        found = self.entry.found
        return title(self.entry.case, self.row.result, found.device if found and found.device else self.entry.device)


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one cause, the one to show first. `status`: as in the ledger; `news`: it needs triage."""

    title: str
    status: str
    findings: tuple[StoredFinding, ...]
    notes: tuple[str, ...] = ()
    news: bool = True


def group_findings(run: Path, findings: Sequence[StoredFinding], ledger: Ledger) -> list[Group]:
    """A group for every known root cause, and for every finding without one; news first.

    A cause is known if the ledger lists it or `triage.cluster` found it. None is searched here: that needs torch."""
    public = {one.row.case_id: one for one in findings if one.row.kind != "internal"}
    torch = read_torch(run)
    listed, rest = split_listed([read_row(one.row, one.entry, run, torch) for one in public.values()], ledger)
    groups = [_group(one, public) for one in cluster([*listed, *load_attributed(rest)], ledger)]
    groups += [
        Group(
            one.title,
            "internal",
            (one,),
            ("Only an internal subject shows it; this campaign ran no public one that could confirm it.",),
            news=False,
        )
        for one in findings
        if one.row.kind == "internal"
    ]
    return sorted(groups, key=lambda group: not group.news)


def describe_group(number: int, group: Group) -> dict[str, object]:
    """The group by its first finding, as the page's template reads it."""
    first, rows = group.findings[0], [one.row for one in group.findings]
    result, case = first.row.result, first.entry.case
    image = picture.png(case, result)
    status, _, about = group.status.partition(" ")
    is_link = about.startswith(("https://", "http://"))
    broken = result.failure.relation if isinstance(result.failure, RelationBroken) else ""
    notes = [f"The function was called again with other arguments ({broken}): {MEANINGS[broken]}."] if broken else []
    return {
        "anchor": f"finding-{number}",
        "title": group.title,
        "status": spell_out(status),
        "about": "" if is_link else about,
        "link": about if is_link else "",
        "news": group.news,
        "verdict": spell_out(result.verdict),
        "verdicts": ", ".join(dict.fromkeys(spell_out(row.result.verdict) for row in rows)),
        "meaning": result.verdict.explanation,
        "subject": result.subject,
        "count": sum(row.count for row in rows),
        "first_seen": format_time(min(row.first_seen for row in rows)),
        "last_seen": format_time(max(row.last_seen for row in rows)),
        "failure": describe(result),
        "notes": [*group.notes, *notes],
        "where": describe_where(case, result.where),
        "numbers": list_numbers(result),
        "fired": result.fired,
        "program": source(case).strip(),
        "commands": list_commands(first.row.file, first.row.case_id, result.subject),
        "case_name": Path(first.row.file).name,
        "case_file": first.row.entry.strip(),
        "others": [(one.row.file, one.title) for one in group.findings[1:]],
        "image": embed("image/png", image) if image else "",
        "image_text": picture.describe(case, result),
    }


def spell_out(name: str | Verdict) -> str:
    """A verdict, outcome or the like as words: "wrong result"."""
    return str(name).replace("_", " ")


def format_time(seconds: float) -> str:
    """A time in UTC, so that it is the same wherever the page is made."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def embed(kind: str, data: bytes) -> str:
    """A file as a data address."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _group(found: Cluster, findings: dict[str, StoredFinding]) -> Group:
    # The simplest that has a picture says most.
    members = tuple(sorted((findings[one.id] for one in found.findings), key=lambda one: one.row.result.map is None))
    known, bug = all(one.row.kind == "known" for one in members), found.bug
    notes = []
    if found.back_in:
        notes.append(f"The ledger calls it {bug.status if bug else 'fixed'}, and it is back in torch {found.back_in}.")
    if bug:
        notes += [f"In the ledger as {bug.id}.", *filter(None, [bug.note])]
    if not found.is_open:
        notes.append(f"Root cause: {', or '.join(map(str, found.keys))}.")
        if found.parts and len(members) > 1:
            notes.append(f"Parts at fault in {format_count(len(members), 'finding')}: {', '.join(found.parts)}.")
    elif not known:
        notes.append("Its root cause is not known yet: run python -m triage.cluster.")
    notes += ["Known before this campaign, which hit it again."] if known else []
    status = str(bug.status) if bug else "known" if known else "new"
    name = members[0].title if found.is_open and bug is None else found.title
    # What a file beside the ledger holds is known too.
    return Group(name, status, members, tuple(notes), found.is_news and not (bug is None and known))
