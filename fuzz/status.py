"""Print the state of campaigns: `python -m fuzz.status RUN...`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.cli import enter
from fuzz.durations import format_duration

if TYPE_CHECKING:
    from fuzz.run_summary import RunSummary


@dataclass(frozen=True)
class Number:
    """A number of a campaign."""

    name: str  # in --json; in OpenMetrics a gauge with the prefix attnfuzz_
    about: str
    read: "Callable[[RunSummary], float | None]"
    title: str = ""  # in the table; "" for a number that is not there
    show: Callable[[float], str] = "{:.0f}".format


NUMBERS = (
    Number("running", "Whether a process runs the campaign.", lambda run: run.is_running),
    Number("workers", "Worker processes.", lambda run: run.workers, "workers"),
    Number(
        "seconds",
        "Time that all runs in the directory took.",
        lambda run: run.counts.seconds,
        "elapsed",
        lambda seconds: format_duration(round(seconds)),
    ),
    Number("cases", "Cases judged.", lambda run: run.cases, "cases"),
    Number(
        "cases_per_second",
        "Cases a second over all of that time.",
        lambda run: run.rate(run.cases),
        "rate",
        "{:.1f}/s".format,
    ),
    Number("new_findings", "Findings of the campaign.", lambda run: len(run.list_findings("new")), "new"),
    Number("known_findings", "Known bugs that it met.", lambda run: len(run.list_findings("known")), "known"),
    Number("waiting_suspicions", "Failures that are not investigated yet.", lambda run: run.waiting, "waiting"),
    Number(
        "last_find_timestamp_seconds",
        "When the last finding was saved.",
        lambda run: max((row.first_seen for row in run.list_findings("new")), default=None),
        "last",
        lambda when: f"{format_duration(max(0, round(time.time() - when)))} ago",
    ),
    Number(
        "size_bytes",
        "Size of the run directory.",
        lambda run: sum(path.lstat().st_size for path in run.path.rglob("*") if path.is_file()),
        "size",
        lambda size: f"{size / 2**20:.1f} MiB",
    ),
)


def status(*runs: Path, metrics: Path | None = None, json: Path | None = None) -> None:
    """Print a table of campaigns, which may be running: nothing is locked or written in their directories.

    Parameters
    ----------
    runs
        Run directories, as given to `fuzz.run --out`.
    metrics
        Write the numbers to this file in the text format of OpenMetrics, for Prometheus and others to scrape.
    json
        Write the numbers and the findings to this file as JSON (docs/guide-upgrade.md).

    Examples
    --------
    python -m fuzz.status runs/*
    python -m fuzz.status runs/* --metrics /var/lib/node_exporter/attnfuzz.prom
    """
    from json import dumps

    from corpus.files import replace_file
    from generators.errors import UserError

    if not runs:
        raise UserError("name at least one run directory")
    data = [describe_run(run) for run in runs]
    if metrics is not None:
        replace_file(metrics, format_metrics(data).encode())
    if json is not None:
        replace_file(json, f"{dumps(data, indent=1)}\n".encode())
    shown = [number for number in NUMBERS if number.title]
    rows = [["run", "state", "torch", "device", *(number.title for number in shown)]]
    for run in data:
        values = ((number, run[number.name]) for number in shown)
        cells = ["none" if value is None else number.show(value) for number, value in values]
        rows.append([run["run"], run["state"], run["torch"], run["device"], *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def describe_run(directory: Path) -> dict[str, Any]:
    """A campaign, JSON-ready: its labels, numbers and findings. Raises `UserError`."""
    from fuzz.protocol.render import describe
    from fuzz.run_summary import RunSummary

    run = RunSummary.load(directory)
    findings = [
        {
            "id": row.case_id,
            "status": row.kind,
            "verdict": row.result.verdict.value,
            "subject": row.result.subject,
            "title": describe(row.result) or row.result.verdict.explanation,
            "count": row.count,
            "file": row.file,
        }
        for row in run.findings
    ]
    started = run.counts.started
    labels = {"run": str(directory), "torch": run.torch, "device": started.device if started else ""}
    numbers = {number.name: number.read(run) for number in NUMBERS}
    return {**labels, "state": run.state, **numbers, "findings": findings}


def format_metrics(runs: Sequence[dict[str, Any]]) -> str:
    """The numbers of campaigns, each with its labels, in the text format of OpenMetrics."""
    lines = []
    for number in NUMBERS:
        lines += [f"# TYPE attnfuzz_{number.name} gauge", f"# HELP attnfuzz_{number.name} {number.about}"]
        for run in runs:
            labels = ",".join(f'{label}="{_escape(run[label])}"' for label in ("run", "torch", "device"))
            if run[number.name] is not None:
                lines.append(f"attnfuzz_{number.name}{{{labels}}} {float(run[number.name])!r}")
    return "\n".join([*lines, "# EOF", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


if __name__ == "__main__":
    enter(status, "fuzz.status")
