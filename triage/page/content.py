"""What the page of a campaign shows: the campaign, and its bugs, each with its findings, a title and a status."""

import ast
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus import entry as corpus_entry
from corpus import ledger as ledgers
from fuzz.durations import format_count, format_duration
from fuzz.error_location import describe_where, describe_with_names
from fuzz.events import Counts
from fuzz.expectation import describe_details, list_commands
from fuzz.protocol import Verdict
from fuzz.run_store import FindingRow, Results, describe_losses, is_running
from fuzz.worker_config import ROOT
from generators.program.case import Case
from generators.program.emit import source
from triage.cluster.attributions import load_attributed
from triage.cluster.clusters import Cluster, cluster, split_listed, status_text
from triage.cluster.findings import read_row
from triage.rendering import render
from triage.report.repro import WITHOUT_NUMBERS
from triage.report.wording import title

INTERNAL = "internal"


def make_page(
    run: Path, ledger: Path | None = None, reports: Path | None = None, beside: Path | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The page of a run directory, and what it lists; links are relative to `beside`, by default the run directory.

    Raises UserError when it is none.
    """
    file = ledger or ROOT / "corpus" / "ledger.yaml"
    known = ledgers.load(file) if ledger is not None or file.exists() else ledgers.Ledger(file)
    with closing(Results.open_readonly(run)) as results:
        bugs = list_bugs(run, results, known, reports or ROOT / "docs" / "reports")
        for bug in bugs:
            bug["report"] = bug["report"] and Path(os.path.relpath(bug["report"], beside or run)).as_posix()
        campaign = describe_campaign(run, results)
    return render("page.html.j2", campaign=campaign, findings=bugs, summary=summarize(bugs)), bugs


def summarize(bugs: list[dict[str, Any]]) -> str:
    """What was found in a few words: "2 new findings, 3 known bugs met again"."""
    news = sum(bug["news"] for bug in bugs)
    known = sum(not bug["news"] and bug["status"] != "internal" for bug in bugs)
    return f"{format_count(news, 'new finding')}, {format_count(known, 'known bug')} met again"


def describe_campaign(run: Path, results: Results) -> dict[str, object]:
    """The campaign of a run directory, which may be written to still, as the page's template reads it."""
    counts = Counts.load(results)
    ran = f"{format_duration(counts.seconds)} in {format_count(counts.runs, 'session')}"
    used = {verdict for found in counts.verdicts.values() for verdict in found}
    return {
        "name": run.resolve().name,
        "state": _describe_state(counts, is_running=is_running(run)),
        "tried": _describe_scope(counts, results, ran) if counts.started else [],
        "sure": _list_sure(counts) if counts.started else [],
        "facts": _list_facts(counts, results) if counts.started else [],
        "verdicts": counts.verdicts,
        "columns": [(verdict, spell_out(verdict)) for verdict in Verdict if verdict in used],
        "faults": [(fault.text.strip(), fault.path) for fault in counts.faults],
    }


def _describe_state(counts: Counts, *, is_running: bool) -> str:
    if counts.started is None:
        return "The campaign has not started."
    if counts.ended:
        return f"The campaign ended: {counts.ended}."
    how = "is running" if is_running else "was killed"
    return f"The campaign {how}; its last event was at {format_time(counts.last)} UTC."


def _describe_scope(counts: Counts, results: Results, ran: str) -> list[str]:
    """What was run: how many programs, in which ways, on what, and what of the compiler they reached."""
    started = counts.started
    assert started is not None
    kinds = Counter(name.partition(" ")[0] for name in results.count_reached())
    reached = ", ".join(format_count(kinds[kind], kind) for kind in ("rewrite", "op", "lowering") if kinds[kind])
    return [
        f"{format_count(counts.cases, 'program')} with attention, each against itself in float64",
        f"in {format_count(len(started.subjects), 'way')} with torch {started.torch} on {started.device.upper()}",
        *([f"reaching {reached} of the compiler"] if reached else []),
        f"{ran} since {format_time(counts.began)} UTC",
    ]


def _list_sure(counts: Counts) -> list[str]:
    """How far the results are to be trusted."""
    refused = f"eager refused {format_count(counts.rejected.total(), 'program')}" if counts.rejected else ""
    lost = describe_losses(counts.losses) if counts.losses else ""
    own = f"{format_count(len(counts.faults), 'error')} in attnfuzz itself" if counts.faults else ""
    return ["new ones were shrunk, and shown again by three fresh workers", *filter(None, [refused, lost, own])]


def _list_facts(counts: Counts, results: Results) -> list[tuple[str, str]]:
    started, seconds = counts.started, counts.seconds
    assert started is not None
    checks, workers = counts.cases + counts.probes, max(1, started.workers)
    rate = f"; {checks / seconds:.1f} a second" if seconds else ""
    share = min(counts.torch_seconds / (seconds * workers), 1.0) if seconds else 0.0
    return [
        ("device", f"{started.device_name}, {format_count(workers, 'worker')}"),
        ("seed", str(results.meta("seed") or started.seed)),
        ("budget", started.budget),
        ("checks", f"{checks}, including shrinking and confirming{rate}; {share:.0%} of the time in torch"),
        ("subjects", ", ".join(started.subjects)),
    ]


def list_bugs(run: Path, results: Results, ledger: ledgers.Ledger, reports: Path) -> list[dict[str, Any]]:
    """What the page's template reads of every known root cause, and of every finding without one; news first, then what
    is silent. `reports`: where a report may be, in a directory with the name of the bug or finding.

    A cause is known if the ledger lists it or `triage.cluster` found it. None is searched here: that needs torch."""
    torch = results.meta("torch") or ""
    rows = {row.case_id: row for row in results.findings() if row.kind != "known" or row.count}
    found = [read_row(row, corpus_entry.loads(row.entry, row.file), run, torch) for row in rows.values()]
    internal = [one for one in found if rows[one.id].kind == INTERNAL]
    listed, rest = split_listed([one for one in found if one not in internal], ledger)
    clusters = [*cluster([*listed, *load_attributed(rest)], ledger), *cluster(load_attributed(internal), ledger)]
    described = (_describe(one, rows, reports) for one in clusters)
    return sorted(described, key=lambda bug: (not bug["news"], not bug["silent"], -bug["count"]))


def _describe(found: Cluster, rows_by_id: Mapping[str, FindingRow], reports: Path) -> dict[str, Any]:
    """A cluster, by the simplest of its findings."""
    bug = found.bug
    rows = [rows_by_id[one.id] for one in found.findings]
    result, case = rows[0].result, found.example.entry.case
    kinds = {row.kind for row in rows}
    is_new = bug is None and "new" in kinds
    status = "new" if is_new else next(iter(kinds))
    if bug is not None:
        status = "undecided" if bug.status.is_open else bug.status.kind
    report = reports / (bug.id if bug else found.example.id) / "report.md"
    return {
        "silent": result.verdict not in WITHOUT_NUMBERS,
        "device": found.example.entry.device.upper(),
        "spelling": spell_in_one_line(case),
        "report": report if report.is_file() else None,
        "cause_known": not found.is_open,
        "title": title(case, result, found.example.entry.device) if found.is_open and bug is None else found.title,
        "status": "regression" if found.back_in else spell_out(status),
        "news": is_new or bool(found.back_in),
        "link": bug.status.about if bug and bug.status.about.startswith("http") else "",
        "notes": _list_notes(found, kinds),
        "verdict": spell_out(result.verdict),
        "meaning": result.verdict.explanation,
        "subject": result.subject,
        "count": sum(row.count for row in rows),
        "first_seen": format_time(min(row.first_seen for row in rows)),
        "last_seen": format_time(max(row.last_seen for row in rows)),
        "failure": describe_with_names(case, result),
        "details": describe_details(result, describe_where(case, result.where)),
        "program": source(case).strip(),
        "commands": list_commands(rows[0].file, rows[0].case_id, result.subject),
        "case_name": Path(rows[0].file).name,
    }


def _list_notes(found: Cluster, kinds: set[str]) -> list[str]:
    """What the ledger says of a bug, its root cause, and how far this campaign is to be trusted with it."""
    bug = found.bug
    notes = [f"In the ledger as {bug.id}: {status_text(found)}.", *filter(None, [bug.note])] if bug else []
    if not found.is_open:
        notes.append(f"Root cause: {', or '.join(map(str, found.keys))}.")
    elif kinds == {INTERNAL}:
        notes.append("Only an internal subject shows it; this campaign ran no public one that could confirm it.")
    elif "new" in kinds:
        notes.append("Its root cause is not known yet: run python -m triage.cluster.")
    return [*notes, "Known before this campaign, which hit it again."] if kinds == {"known"} else notes


class _Values(ast.NodeTransformer):
    """Puts values that are read once in the place of their names."""

    def __init__(self) -> None:
        self.held: dict[str, ast.expr] = {}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.held.pop(node.id, node)

    def name_held(self) -> list[str]:
        lines = [f"{name} = {ast.unparse(value)}" for name, value in self.held.items()]
        self.held = {}
        return lines


def spell_in_one_line(case: Case) -> str:
    """What forward computes: "out = (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v". Writes are statements of their own,
    and what is made before one stays before it."""
    made = ast.walk(ast.parse(source(case)))
    forward = next(one for one in made if isinstance(one, ast.FunctionDef) and one.name == "forward")
    reads = Counter(one.id for one in ast.walk(forward) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    values, lines = _Values(), list[str]()
    for statement in forward.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                value = values.visit(value)
                if reads[name] == 1:
                    values.held[name] = value
                else:
                    lines.append(f"{name} = {ast.unparse(value)}")
            case ast.Return():
                lines += values.name_held()
            case _:
                text = ast.unparse(values.visit(statement))
                lines += [*values.name_held(), text.replace(":\n   ", ":").replace("\n    ", "; ")]
    return "; ".join(lines)


def spell_out(name: object) -> str:
    """A verdict or the like as words: "wrong result"."""
    return str(name).replace("_", " ")


def format_time(seconds: float) -> str:
    """A time in UTC, so that it is the same wherever the page is made."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
