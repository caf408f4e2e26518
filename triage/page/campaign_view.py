"""What the page of a campaign says of the campaign itself."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from fuzz.durations import format_count, format_duration
from fuzz.protocol import Verdict
from fuzz.run_store import Outcome, Results
from triage.page.charts import draw_coverage, draw_rates
from triage.page.findings import embed, format_time, spell_out
from triage.page.timeline import Timeline

_PATTERN = re.compile(r"_?sfdp_pattern_(\d+)_?(\w*)")
_MAX_REASONS = 10
_OUTCOMES = {
    Outcome.FINDING: "became a finding",
    Outcome.INTERNAL: "became a finding of an internal subject only, since no public one was run",
    Outcome.INTERNAL_ONLY: "set aside: only an internal subject shows it",
    Outcome.WITHIN_SAME: "set aside: torch._dynamo.utils.same accepts the difference",
    Outcome.UNCONFIRMED: "set aside: did not fail in three fresh workers",
    Outcome.DUPLICATE: "explained by a finding",
    "waiting": "not yet looked into",
}


def describe_campaign(run: Path, results: Results, timeline: Timeline) -> dict[str, object]:
    """The campaign of a run directory, as the page's template reads it."""
    verdicts = results.verdicts()
    patterns = _group_patterns(timeline.fired)
    kinds: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for thing, count in timeline.things.most_common():
        kind, _, name = thing.partition(" ")
        kinds[kind].append((name, count))
    return {
        "name": run.resolve().name,
        "state": _describe_state(timeline),
        "facts": _list_facts(timeline, results),
        "charts": _draw_charts(timeline),
        "verdicts": verdicts,
        "columns": [(one, spell_out(one)) for one in Verdict if any(one in counts for counts in verdicts.values())],
        "outcomes": [(_OUTCOMES.get(name, spell_out(name)), n) for name, n in results.counts("outcomes").items()],
        "rejected": list(results.counts("rejected").items())[:_MAX_REASONS],
        "faults": [(str(fault.get("text", "")).strip(), str(fault.get("path", ""))) for fault in timeline.faults],
        "patterns": patterns,
        "missing": sorted(set(range(1, max(patterns, default=0))) - patterns.keys()),
        "tables": [
            ("other rewrites", [one for one in timeline.fired.most_common() if not _PATTERN.fullmatch(one[0])]),
            *((f"of kind {kind}", kinds[kind]) for kind in sorted(kinds)),
        ],
    }


def _describe_state(timeline: Timeline) -> str:
    if not timeline.sessions:
        return "The campaign has not started."
    if timeline.ended:
        return f"The campaign ended: {timeline.ended}."
    return f"The campaign is running or was killed; its last event was at {format_time(timeline.last_event)} UTC."


def _list_facts(timeline: Timeline, results: Results) -> list[tuple[str, str]]:
    started = timeline.started
    if not started:
        return []
    workers = int(started.get("workers") or 1)
    rate = len(timeline.checks) / timeline.seconds if timeline.seconds else 0.0
    share = min(timeline.torch_seconds / (timeline.seconds * workers), 1.0) if timeline.seconds else 0.0
    sessions = f" in {timeline.sessions} sessions" if timeline.sessions > 1 else ""
    facts = [
        ("torch", f"{started.get('torch')} with Python {started.get('python')}"),
        ("device", f"{started.get('device')} ({started.get('device_name')}), {format_count(workers, 'worker')}"),
        ("seed", str(results.meta("seed") or started.get("seed"))),
        ("started", f"{format_time(timeline.first_event)} UTC"),
        (
            "ran for",
            f"{format_duration(timeline.seconds)}{sessions}; budget of the last session: {started.get('budget')}",
        ),
        ("cases", f"{len(timeline.cases)}; eager refused {timeline.rejected} of them"),
        ("checks", f"{len(timeline.checks)}, including shrinking and confirming; {rate:.1f} a second"),
        ("time in torch", f"{share:.0%} of the workers' time"),
        ("subjects", ", ".join(str(subject) for subject in started.get("subjects", ()))),
    ]
    return [*facts, *([("worker deaths", str(timeline.deaths))] if timeline.deaths else [])]


def _draw_charts(timeline: Timeline) -> list[tuple[str, str]]:
    total = f"{len(timeline.cases)} cases and {len(timeline.checks)} checks in {format_duration(timeline.seconds)}"
    reached = f"{len(timeline.fired)} rewrites and {len(timeline.things)} other things"
    charts = (
        (draw_rates(timeline), f"Cases and checks per second over time; {total}."),
        (draw_coverage(timeline), f"Distinct parts of the compiler reached over time; {reached} in the end."),
    )
    return [(embed("image/svg+xml", svg.encode()), text) for svg, text in charts if svg]


def _group_patterns(fired: Counter[str]) -> Mapping[int, list[tuple[str, int]]]:
    """The attention patterns that fired by number: each form, and in how many cases."""
    forms: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, count in sorted(fired.items()):
        if match := _PATTERN.fullmatch(name):
            forms[int(match[1])].append((match[2].replace("_", " ") or "plain", count))
    return dict(sorted(forms.items()))
