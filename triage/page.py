"""Show a campaign as one HTML file: `python -m triage.page RUN`. It needs no network, and nothing is sent."""

import ast
import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus import ledger as ledgers
from corpus.files import replace_file, require_writable
from fuzz.cli import enter
from fuzz.commands import REPORTS, find_report, list_commands
from fuzz.durations import format_count, format_duration
from fuzz.error_location import describe_where, describe_with_names
from fuzz.protocol import CoverageKind, Verdict
from fuzz.replay_result import describe_details
from fuzz.run_store import FindingRow
from fuzz.run_summary import RunSummary
from generators.program.case import Case
from generators.program.emit import source
from triage.cluster.clusters import Cluster, cluster, describe_status, split_listed
from triage.cluster.findings import load_attributed, read_row
from triage.rendering import render
from triage.report.failing_run import WITHOUT_NUMBERS
from triage.report.wording import spell, title


def page(run: Path, *, out: Path | None = None, ledger: Path | None = None, reports: Path | None = None) -> None:
    """Write an HTML file about a campaign: its findings, and the coverage of its cases.

    The campaign may still be running; nothing in its directory is changed except the page itself.

    Parameters
    ----------
    run
        Directory of a campaign, as given to `fuzz.run --out`.
    out
        The HTML file; by default page.html in the run directory.
    ledger
        The ledger of bugs; by default corpus/ledger.yaml of this checkout.
    reports
        Directory of reports to link to, as given to `triage.report RUN --out`; by default docs/reports of this
        checkout.

    Examples
    --------
    python -m triage.page runs/NAME
    python -m triage.page runs/NAME --out page.html
    """
    summary, file = RunSummary.load(run), out or run / "page.html"
    require_writable(file, "--out", is_file=True)
    html, bugs = make_page(summary, ledger, reports, file.parent)
    replace_file(file, html.encode())
    print(f"{file}: {_count_bugs(bugs)}")  # noqa: T201 - a command line prints its result


def make_page(
    run: RunSummary, ledger: Path | None = None, reports: Path | None = None, beside: Path | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The page of a campaign, and the bugs that it lists.

    Links are relative to the directory `beside`, by default the run directory. Raises `UserError` for an unreadable
    ledger or finding.
    """
    known = ledgers.load(ledger or ledgers.LEDGER)
    bugs = list_bugs(run, known, reports or REPORTS, beside or run.path)
    verdicts = {verdict for found in run.counts.verdicts.values() for verdict in found}
    kinds = run.count_coverage()
    html = render(
        "page.html.j2",
        run=run,
        reached=[
            format_count(kinds[kind], kind.value)
            for kind in (CoverageKind.REWRITE, CoverageKind.OP, CoverageKind.LOWERING)
            if kinds[kind]
        ],
        findings=bugs,
        summary=_count_bugs(bugs),
        columns=[(verdict, spell(verdict)) for verdict in Verdict if verdict in verdicts],
        count=format_count,
        duration=format_duration,
        time=format_time,
    )
    return html, bugs


def _count_bugs(bugs: list[dict[str, Any]]) -> str:
    news = sum(bug["news"] for bug in bugs)
    known = sum(not bug["news"] and bug["status"] != "internal" for bug in bugs)
    return f"{format_count(news, 'new finding')}, {format_count(known, 'known bug')} met again"


def list_bugs(run: RunSummary, ledger: ledgers.Ledger, reports: Path, beside: Path) -> list[dict[str, Any]]:
    """The root causes and the findings without a known cause, for the page's template: news first, then silent bugs.

    A cause is known if the ledger lists it or `triage.cluster` found it. No cause is searched for here, since that
    needs torch. `reports` may hold a report of a bug or finding in a directory of its name.
    """
    rows = {row.case_id: row for row in run.findings}
    found = [read_row(row, run) for row in run.findings]
    internal = [finding for finding in found if rows[finding.id].kind == "internal"]
    listed, rest = split_listed([finding for finding in found if finding not in internal], ledger)
    clusters = [*cluster([*listed, *load_attributed(rest)], ledger), *cluster(load_attributed(internal), ledger)]
    python = run.counts.started.python or sys.executable
    described = [_describe(bug, rows, reports, beside, python) for bug in clusters]
    return sorted(described, key=lambda bug: (not bug["news"], not bug["silent"], -bug["count"]))


def _describe(
    found: Cluster, rows_by_id: Mapping[str, FindingRow], reports: Path, beside: Path, python: str
) -> dict[str, Any]:
    bug, entry = found.bug, found.example.entry
    rows = [rows_by_id[finding.id] for finding in found.findings]
    result, case = rows[0].result, entry.case
    kinds = {row.kind for row in rows}
    is_new = bug is None and "new" in kinds
    status = "new" if is_new else next(iter(kinds))
    if bug is not None:
        undecided = "known upstream" if bug.known_upstream else "undecided"
        status = undecided if bug.status.kind == "new" else bug.status.kind
    report = find_report(bug.id if bug else found.example.id, reports)
    return {
        "result": result,
        "silent": result.verdict not in WITHOUT_NUMBERS,
        "device": entry.device.upper(),
        "spelling": spell_in_one_line(case),
        "report": Path(os.path.relpath(report, beside)).as_posix() if report else None,
        "cause_known": not found.is_open,
        "title": title(case, result, entry.device) if found.is_open and bug is None else found.updated.title,
        "status": "regression" if found.back_in else spell(status),
        "news": is_new or bool(found.back_in),
        "link": _find_issue(bug) if bug else "",
        "verdict": spell(result.verdict),
        "count": sum(row.count for row in rows),
        "first_seen": format_time(min(row.first_seen for row in rows)),
        "last_seen": format_time(max(row.last_seen for row in rows)),
        "lines": [
            describe_with_names(case, result),
            *_list_notes(found, kinds),
            *describe_details(result, describe_where(case, result.where)),
        ],
        "program": source(case).strip(),
        "commands": list_commands(
            rows[0].file, rows[0].case_id, result.subject, python, is_shrinking_cut=rows[0].entry.is_shrinking_cut
        ),
        "case_name": Path(rows[0].file).name,
    }


def _find_issue(bug: ledgers.Bug) -> str:
    """The page of the issue about a bug, ours first; "" if nobody reported it."""
    ours = [bug.status.about] if bug.status.kind == "reported" else []
    return next(iter([*ours, *(issue.url for issue in bug.known_upstream)]), "")


def _list_notes(found: Cluster, kinds: set[str]) -> list[str]:
    """The ledger's words about a bug, its root cause, and how sure this campaign is of it."""
    bug = found.bug
    notes = [f"In the ledger as {bug.id}: {describe_status(found)}.", bug.note] if bug else []
    if not found.is_open:
        notes.append(f"Root cause: {', or '.join(map(str, (found.bug or found.updated).causes))}.")
    elif kinds == {"internal"}:
        notes.append("Only an internal subject shows it; this campaign ran no public subject that could confirm it.")
    elif "new" in kinds:
        notes.append("Its root cause is not known yet: run python -m triage.cluster.")
    return [*notes, "Known before this campaign, which hit it again."] if kinds == {"known"} else notes


def spell_in_one_line(case: Case) -> str:
    """The statements of forward, with the name of each value that is read once replaced by the value.

    For example "out = (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v". A write to memory keeps its place.
    """
    tree = ast.walk(ast.parse(source(case)))
    functions = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    forward = functions.get("compute", functions["forward"])  # forward calls compute under a checkpoint
    reads = Counter(
        node.id for node in ast.walk(forward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    held: dict[str, ast.expr] = {}

    class Inlined(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return held.pop(node.id, node)

    lines: list[str] = []
    for statement in forward.body:
        match statement:
            case ast.Assign([ast.Name(name)], value) if reads[name] == 1:
                held[name] = Inlined().visit(value)
            case ast.Assign([ast.Name()]):
                lines.append(ast.unparse(Inlined().visit(statement)))
            case _:
                text = "" if isinstance(statement, ast.Return) else ast.unparse(Inlined().visit(statement))
                lines += [f"{name} = {ast.unparse(value)}" for name, value in held.items()]
                held.clear()
                lines.append(text.replace(":\n   ", ":").replace("\n    ", "; "))
    program = "; ".join(filter(None, lines))
    return f"checkpointed: {program}" if forward.name == "compute" else program


def format_time(seconds: float) -> str:
    """A time in UTC, so that a page does not depend on the machine."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


if __name__ == "__main__":
    enter(page, "triage.page")
