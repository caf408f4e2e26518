"""Print the state of campaigns: `python -m fuzz.status RUN...`."""

from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.cli import enter

if TYPE_CHECKING:
    from fuzz.run_store import Results

Numbers = dict[str, float | None]
_HELP = {
    "running": "Whether a process runs the campaign.",
    "workers": "Worker processes.",
    "seconds": "Time that all runs in the directory took.",
    "cases": "Cases judged.",
    "cases_per_second": "Cases a second over all of that time.",
    "new_findings": "Findings of the campaign.",
    "known_findings": "Known bugs that it met.",
    "waiting_suspicions": "Failures that are not investigated yet.",
    "last_find_timestamp_seconds": "When the last finding was saved.",
    "size_bytes": "Size of the run directory.",
}
"""The numbers of a campaign; in OpenMetrics each is a gauge with the prefix `attnfuzz_`."""


def status(*runs: Path, metrics: Path | None = None, json: Path | None = None) -> None:
    """Print a table of campaigns, which may be running: nothing is locked or written in their directories.

    Parameters
    ----------
    runs
        Run directories, as given to `fuzz.run --out`.
    metrics
        Write the numbers to this file in the text format of OpenMetrics, for Prometheus and others to scrape.
    json
        Write the numbers and the findings to this file as JSON (docs/nightly.md).

    Examples
    --------
    python -m fuzz.status runs/*
    python -m fuzz.status runs/* --metrics /var/lib/node_exporter/attnfuzz.prom
    """
    from contextlib import closing
    from json import dumps

    from corpus.files import replace_file
    from fuzz.run_store import Results
    from generators.errors import UserError

    if not runs:
        raise UserError("name at least one run directory")
    rows = [_TITLES.split()]
    samples, data = [], []
    for run in runs:
        with closing(Results.open_readonly(run)) as results:
            labels, state, numbers = describe_run(run, results)
            data.append({**labels, "state": state, **numbers, "findings": list_findings(results)})
        rows.append(_format_row(labels, state, numbers))
        samples.append((labels, numbers))
    if metrics is not None:
        replace_file(metrics, format_metrics(samples).encode())
    if json is not None:
        replace_file(json, f"{dumps(data, indent=1)}\n".encode())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def describe_run(run: Path, results: "Results") -> tuple[dict[str, str], str, Numbers]:
    """What a campaign is, how it is, and its numbers. Raises `UserError` for a store of another version."""
    from fuzz.events import Counts
    from fuzz.run_store import is_running

    counts, findings, runs = Counts.load(results), results.findings(), is_running(run)
    started, (cursor, beyond) = counts.started, results.position()
    cases = cursor + len(beyond)
    labels = {"run": str(run), "torch": results.meta("torch") or "", "device": started.device if started else ""}
    numbers: Numbers = {
        "running": runs,
        "workers": started.workers if started else 0,
        "seconds": counts.seconds,
        "cases": cases,
        "cases_per_second": cases / counts.seconds if counts.seconds else 0.0,
        "new_findings": sum(row.kind == "new" for row in findings),
        "known_findings": sum(row.kind == "known" and row.count > 0 for row in findings),
        "waiting_suspicions": results.outcomes().get("waiting", 0),
        "last_find_timestamp_seconds": max((row.first_seen for row in findings if row.kind == "new"), default=None),
        "size_bytes": sum(path.lstat().st_size for path in run.rglob("*") if path.is_file()),
    }
    return labels, "runs" if runs else counts.ended or "killed", numbers


def list_findings(results: "Results") -> list[dict[str, object]]:
    """The findings of a campaign, and the known bugs that it met, JSON-ready."""
    from fuzz.protocol.render import describe

    return [
        {
            "id": row.case_id,
            "status": row.kind,
            "verdict": row.result.verdict.value,
            "subject": row.result.subject,
            "title": describe(row.result) or row.result.verdict.explanation,
            "count": row.count,
            "file": row.file,
        }
        for row in results.findings()
        if row.kind != "known" or row.count
    ]


_TITLES = "run state torch device workers elapsed cases rate new known waiting last size"


def _format_row(labels: dict[str, str], state: str, numbers: Numbers) -> list[str]:
    import time

    from fuzz.durations import format_duration

    _, workers, seconds, cases, rate, *counts, found, size = (value or 0.0 for value in numbers.values())
    run, torch, device = labels.values()
    last = f"{format_duration(max(0, round(time.time() - found)))} ago" if found else "none"
    row = [
        run,
        state,
        torch,
        device,
        f"{workers:.0f}",
        format_duration(round(seconds)),
        f"{cases:.0f}",
        f"{rate:.1f}/s",
    ]
    return [*row, *(f"{count:.0f}" for count in counts), last, f"{size / 2**20:.1f} MiB"]


def format_metrics(samples: list[tuple[dict[str, str], Numbers]]) -> str:
    """The numbers of campaigns, each with its labels, in the text format of OpenMetrics."""
    lines = []
    for name, about in _HELP.items():
        lines += [f"# TYPE attnfuzz_{name} gauge", f"# HELP attnfuzz_{name} {about}"]
        for labels, numbers in samples:
            pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            if numbers[name] is not None:
                lines.append(f"attnfuzz_{name}{{{pairs}}} {float(numbers[name] or 0.0)!r}")
    return "\n".join([*lines, "# EOF", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


if __name__ == "__main__":
    enter(status, "fuzz.status")
