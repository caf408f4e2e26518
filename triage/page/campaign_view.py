"""What the page of a campaign says of the campaign itself."""

from collections import Counter
from pathlib import Path

from fuzz.durations import format_count, format_duration
from fuzz.events import Counts
from fuzz.protocol import Verdict
from fuzz.run_store import Results, describe_losses, is_running
from triage.page.findings import format_time, spell_out


def describe_campaign(run: Path, results: Results) -> dict[str, object]:
    """The campaign of a run directory, which may be written to still, as the page's template reads it."""
    counts = Counts.load(results)
    ran = f"{format_duration(counts.seconds)} in {format_count(counts.runs, 'session')}"
    used = {verdict for found in counts.verdicts.values() for verdict in found}
    return {
        "name": run.resolve().name,
        "state": _describe_state(counts, is_running=is_running(run)),
        "tried": _list_tried(counts, results, ran) if counts.started else [],
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


def _list_tried(counts: Counts, results: Results, ran: str) -> list[str]:
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
        ("Python", started.python),
        ("device", f"{started.device_name}, {format_count(workers, 'worker')}"),
        ("seed", str(results.meta("seed") or started.seed)),
        ("budget", started.budget),
        ("checks", f"{checks}, including shrinking and confirming{rate}; {share:.0%} of the time in torch"),
        ("subjects", ", ".join(started.subjects)),
    ]
