"""What the page of a campaign says of the campaign itself."""

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.durations import format_count, format_duration
from fuzz.protocol import Verdict
from fuzz.runs import Outcome, Results
from triage.page import charts
from triage.page.finding_view import when, words
from triage.page.timeline import Timeline

_PATTERN = re.compile(r"_?(sfdp_pattern_(\d+)\w*)")
_REASONS = 10
_OUTCOMES = {
    Outcome.FINDING: "became a finding",
    Outcome.INTERNAL: "became a finding that only an internal subject shows, since no public one was run",
    Outcome.INTERNAL_ONLY: "set aside: only an internal subject shows it",
    Outcome.WITHIN_SAME: "set aside: torch._dynamo.utils.same accepts the difference",
    Outcome.UNCONFIRMED: "set aside: did not repeat three times in fresh workers",
    Outcome.DUPLICATE: "explained by a finding",
    "waiting": "waits for a later run",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing as a data address, and what it shows in words."""

    image: str
    text: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Things of one kind: each with the number of cases that reached it."""

    kind: str
    names: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """An attention pattern of Inductor by its number: the forms of it that fired, and in how many cases."""

    number: int
    forms: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class CampaignView:
    """A campaign: texts and numbers as the page shows them."""

    name: str
    state: str
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    verdicts: Sequence[tuple[str, Mapping[str, int]]]
    columns: Sequence[tuple[str, str]]
    outcomes: Sequence[tuple[str, int]]
    rejected: Sequence[tuple[str, int]]
    faults: Sequence[tuple[str, str]]
    patterns: Sequence[Pattern]
    missing: Sequence[int]
    rewrites: Sequence[tuple[str, int]]
    reached: Sequence[Reached]


def of(run: Path, results: Results, timeline: Timeline) -> CampaignView:
    """The campaign of a run directory."""
    verdicts = results.verdicts()
    given = [verdict for verdict in Verdict if any(verdict in counts for counts in verdicts.values())]
    patterns = _patterns(timeline.fired)
    numbers = {pattern.number for pattern in patterns}
    return CampaignView(
        name=run.resolve().name,
        state=_state(timeline),
        facts=_facts(timeline, results),
        charts=_charts(timeline),
        verdicts=[
            (subject, {str(verdict): count for verdict, count in counts.items()})
            for subject, counts in verdicts.items()
        ],
        columns=[(str(verdict), words(verdict)) for verdict in given],
        outcomes=[(_OUTCOMES.get(name, words(name)), count) for name, count in results.counts("outcomes").items()],
        rejected=list(results.counts("rejected").items())[:_REASONS],
        faults=[(str(fault.get("text", "")).strip(), str(fault.get("path", ""))) for fault in timeline.faults],
        patterns=patterns,
        missing=[number for number in range(1, max(numbers, default=0)) if number not in numbers],
        rewrites=[(name, count) for name, count in timeline.fired.most_common() if not _PATTERN.fullmatch(name)],
        reached=_reached(timeline.things),
    )


def _state(timeline: Timeline) -> str:
    if not timeline.sessions:
        return "It has not begun."
    if timeline.ended:
        return f"It ended: {timeline.ended}."
    return f"It has not ended, or was killed: what follows is as of {when(timeline.last_event)} UTC."


def _facts(timeline: Timeline, results: Results) -> list[tuple[str, str]]:
    started = timeline.started
    if not started:
        return []
    rate = len(timeline.checks) / timeline.seconds if timeline.seconds else 0.0
    of_workers = timeline.seconds * int(started.get("workers") or 1)
    runs = f", in {timeline.sessions} runs" if timeline.sessions > 1 else ""
    facts = [
        ("torch", f"{started.get('torch')} under Python {started.get('python')}"),
        (
            "device",
            f"{started.get('device')} ({started.get('device_name')}), {format_count(int(started.get('workers') or 1), 'worker')}",
        ),
        ("seed", str(results.meta("seed") or started.get("seed"))),
        ("began", f"{when(timeline.first_event)} UTC"),
        ("ran for", f"{format_duration(timeline.seconds)}{runs}; budget of the last run: {started.get('budget')}"),
        ("cases", f"{len(timeline.cases)}, of which eager refused {timeline.rejected}"),
        ("checks", f"{len(timeline.checks)}, shrinking and confirming included: {rate:.1f} a second"),
        (
            "time in torch",
            f"{min(timeline.torch_seconds / of_workers, 1.0):.0%} of the workers' time" if of_workers else "-",
        ),
        ("subjects", ", ".join(str(subject) for subject in started.get("subjects", ()))),
    ]
    return [*facts, *([("worker deaths", str(timeline.deaths))] if timeline.deaths else [])]


def _charts(timeline: Timeline) -> list[Chart]:
    told = f"{len(timeline.cases)} cases and {len(timeline.checks)} checks in {format_duration(timeline.seconds)}"
    reached = f"{len(timeline.fired)} rewrites and {len(timeline.things)} other things"
    drawn = (
        (charts.rates(timeline), f"Cases and checks a second over time: {told} in all."),
        (charts.coverage(timeline), f"Different things of the compiler reached over time: {reached} in the end."),
    )
    return [
        Chart(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", text)
        for svg, text in drawn
        if svg
    ]


def _patterns(fired: Mapping[str, int]) -> list[Pattern]:
    forms: dict[int, list[tuple[str, int]]] = {}
    for name, count in sorted(fired.items()):
        match = _PATTERN.fullmatch(name)
        if match:
            form = match[1].removeprefix(f"sfdp_pattern_{match[2]}").strip("_").replace("_", " ")
            forms.setdefault(int(match[2]), []).append((form or "plain", count))
    return [Pattern(number, forms[number]) for number in sorted(forms)]


def _reached(things: Counter[str]) -> list[Reached]:
    kinds: dict[str, list[tuple[str, int]]] = {}
    for thing, count in things.most_common():
        kind, _, name = thing.partition(" ")
        kinds.setdefault(kind, []).append((name, count))
    return [Reached(kind, kinds[kind]) for kind in sorted(kinds)]
