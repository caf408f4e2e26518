"""The bugs that a campaign's page lists, each with its findings, a title and a status."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus import entry as corpus_entry
from corpus.ledger import Ledger
from fuzz.durations import format_count
from fuzz.error_location import describe_where, describe_with_names
from fuzz.expectation import list_commands, list_numbers
from fuzz.protocol import Verdict
from fuzz.protocol.failures import RelationBroken
from fuzz.protocol.render import MEANINGS
from fuzz.run_store import FindingRow, Results
from generators.program.emit import source
from triage.cluster.attributions import load_attributed
from triage.cluster.clusters import Cluster, cluster, split_listed
from triage.cluster.findings import Finding, read_row
from triage.report import picture
from triage.report.wording import title


def list_bugs(run: Path, results: Results, ledger: Ledger) -> list[dict[str, Any]]:
    """What the page's template reads of every known root cause, and of every finding without one; news first.

    A cause is known if the ledger lists it or `triage.cluster` found it. None is searched here: that needs torch."""
    torch, rows = results.meta("torch") or "", [row for row in results.findings() if row.kind != "known" or row.count]
    of_id = {row.case_id: row for row in rows}
    found = [read_row(row, corpus_entry.loads(row.entry, row.file), run, torch) for row in rows]
    listed, rest = split_listed([one for one in found if of_id[one.id].kind != "internal"], ledger)
    bugs = [_describe_cluster(one, of_id) for one in cluster([*listed, *load_attributed(rest)], ledger)]
    note = "Only an internal subject shows it; this campaign ran no public one that could confirm it."
    internal = [one for one in found if of_id[one.id].kind == "internal"]
    bugs += [_describe([one], of_id, status="internal", notes=[note], is_news=False) for one in internal]
    return sorted(bugs, key=lambda bug: not bug["news"])


def _describe_cluster(found: Cluster, of_id: Mapping[str, FindingRow]) -> dict[str, Any]:
    # The simplest that has a picture says most.
    members = sorted(found.findings, key=lambda one: of_id[one.id].result.map is None)
    known, bug = all(of_id[one.id].kind == "known" for one in members), found.bug
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
    return _describe(
        members,
        of_id,
        name="" if found.is_open and bug is None else found.title,
        status=("not_decided_yet" if bug.status.is_open else str(bug.status)) if bug else "known" if known else "new",
        notes=notes,
        is_news=bool(found.back_in) or (bug is None and not known),
    )


def _describe(
    findings: Sequence[Finding],
    of_id: Mapping[str, FindingRow],
    *,
    status: str,
    notes: list[str],
    is_news: bool,
    name: str = "",
) -> dict[str, Any]:
    """Findings of one cause, by the first; `status`: as in the ledger; `name`: "" for the first one's symptom."""
    rows = [of_id[one.id] for one in findings]
    result, case = rows[0].result, findings[0].entry.case
    image = picture.png(case, result)
    kind, _, about = status.partition(" ")
    is_link = about.startswith(("https://", "http://"))
    broken = result.failure.relation if isinstance(result.failure, RelationBroken) else ""
    notes += (
        [f"The function was called again with other arguments ({broken}): {MEANINGS.get(broken, broken)}."]
        if broken
        else []
    )
    titles = [title(one.entry.case, row.result, one.entry.device) for one, row in zip(findings, rows, strict=True)]
    return {
        "title": name or titles[0],
        "status": spell_out(kind),
        "about": "" if is_link else about,
        "link": about if is_link else "",
        "news": is_news,
        "verdict": spell_out(result.verdict),
        "verdicts": ", ".join(dict.fromkeys(spell_out(row.result.verdict) for row in rows)),
        "meaning": result.verdict.explanation,
        "subject": result.subject,
        "count": sum(row.count for row in rows),
        "first_seen": format_time(min(row.first_seen for row in rows)),
        "last_seen": format_time(max(row.last_seen for row in rows)),
        "failure": describe_with_names(case, result),
        "notes": notes,
        "where": describe_where(case, result.where),
        "numbers": list_numbers(result),
        "fired": result.fired,
        "program": source(case).strip(),
        "commands": list_commands(rows[0].file, rows[0].case_id, result.subject),
        "case_name": Path(rows[0].file).name,
        "case_file": rows[0].entry.strip(),
        "others": [(row.file, other) for row, other in zip(rows[1:], titles[1:], strict=True)],
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
