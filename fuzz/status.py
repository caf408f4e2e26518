"""Print the state of campaigns: `python -m fuzz.status RUN...`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.cli import enter
from fuzz.durations import format_duration

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "workers": ("workers", "{:.0f}".format),
    "seconds": ("elapsed", lambda seconds: format_duration(round(seconds))),
    "cases": ("cases", "{:.0f}".format),
    "cases_per_second": ("rate", "{:.1f}/s".format),
    "new_findings": ("new", "{:.0f}".format),
    "known_findings": ("known", "{:.0f}".format),
    "waiting_suspicions": ("waiting", "{:.0f}".format),
    "unconfirmed_suspicions": ("unconfirmed", "{:.0f}".format),
    "not_examined_suspicions": ("unexamined", "{:.0f}".format),
    "explaining_seconds": ("explaining", lambda seconds: format_duration(round(seconds))),
    "last_find_timestamp_seconds": ("last", lambda at: f"{format_duration(max(0, round(time.time() - at)))} ago"),
    "size_bytes": ("size", lambda size: f"{size / 2**20:.1f} MiB"),
}
"""The title and the format of each number in the table."""


def status(*runs: Path, json: Path | None = None, events: Path | None = None) -> None:
    """Print a table of campaigns, which may be running: nothing is locked or written in their directories.

    Parameters
    ----------
    runs
        Run directories, as given to `fuzz.run --out`.
    json
        Write the numbers and the findings to this file as JSON (docs/guide-upgrade.md); without a file, print them in
        place of the table.
    events
        Write the events of these campaigns to this file, a line of JSON for each: of every campaign the latest, up to
        128 MiB.

    Examples
    --------
    python -m fuzz.status runs/*
    python -m fuzz.status runs/* --json numbers.json
    python -m fuzz.status runs/NAME --events events.ndjson
    """
    from corpus.files import replace_file
    from fuzz.commands import write_json
    from fuzz.run_store import Results
    from generators.errors import UserError

    if not runs:
        raise UserError("name at least one run directory")
    data = [describe_run(run) for run in runs]
    if events is not None:
        lines = list[str]()
        for path in runs:
            with Results.open_readonly(path) as results:
                lines += results.list_lines()
        replace_file(events, "".join(f"{line}\n" for line in lines).encode())
    if json is not None and write_json(data, json):
        return
    labels = ["run", "state", "torch", "device"]
    rows = [[*labels, *(title for title, _ in COLUMNS.values())]]
    for run in data:
        cells = ["none" if run[name] is None else show(run[name]) for name, (_, show) in COLUMNS.items()]
        rows.append([*(run[label] for label in labels), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for run in data:
        for subject, reasons in run["not_taken"].items():
            listed = ", ".join(f"{reason} {count}x" for reason, count in reasons.items())
            print(f"{run['run']}: not taken by {subject}: {listed}")


def describe_run(directory: Path) -> dict[str, Any]:
    """A campaign, JSON-ready: its labels, numbers and findings. Raises `UserError`."""
    from fuzz.protocol.render import describe
    from fuzz.run_summary import RunSummary
    from generators.records import encode

    run = RunSummary.load(directory)
    findings = [
        {
            "id": row.case_id,
            "status": row.kind,
            "verdict": row.result.verdict.value,
            "subject": row.result.subject,
            "title": describe(row.result) or row.result.verdict.label,
            "count": row.count,
            "file": row.file,
        }
        for row in run.findings
    ]
    new, started = run.list_findings("new"), run.counts.started
    labels = {"run": str(directory), "torch": started.torch, "device": started.device}
    unconfirmed = [
        {"verdict": verdict, "subject": subject, "count": count}
        for (verdict, subject), count in run.unconfirmed.items()
    ]
    numbers = {
        "running": run.is_running,
        "workers": started.workers,
        "seconds": run.counts.seconds,  # of all sessions
        "cases": run.cases,
        "cases_per_second": run.rate(run.cases),
        "new_findings": len(new),
        "known_findings": len(run.list_findings("known")),
        "waiting_suspicions": run.waiting,
        "unconfirmed_suspicions": run.n_unconfirmed,
        "not_examined_suspicions": run.not_examined,
        "explaining_seconds": run.counts.explaining,  # of worker time
        "last_find_timestamp_seconds": max((row.first_seen for row in new), default=None),
        "size_bytes": sum(path.lstat().st_size for path in run.path.rglob("*") if path.is_file()),
    }
    not_taken = {subject: dict(reasons.most_common()) for subject, reasons in run.counts.skipped.items()}
    listed = {
        "findings": findings,
        "not_taken": not_taken,
        "known_bugs": encode(run.counts.known_bugs),
        "unconfirmed": unconfirmed,
    }
    return {**labels, "state": run.state, **numbers, **listed}


if __name__ == "__main__":
    enter(status, "fuzz.status")
