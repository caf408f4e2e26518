"""What the page of a campaign says of the campaign itself, over time, and its chart: SVG that reads without colours."""

import io
from collections import defaultdict
from collections.abc import Sized
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from fuzz.durations import format_count, format_duration
from fuzz.events import CampaignStarted, CaseJudged, Counts, Event, FindingSaved, read_events
from fuzz.protocol import Verdict
from fuzz.run_store import Outcome, Results, describe_losses
from triage.page.findings import embed, format_time, spell_out

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "attnfuzz", "font.family": ["sans-serif"], "font.size": 9}
_MAX_REASONS = 10
_KINDS = {
    "fallback": "operators that the compiler leaves to eager",
    "graph_break": "reasons to compile a module in parts",
    "kernels": "kinds of generated kernels, by how many a module has",
    "lowering": "operators that the compiler lowers itself",
    "op": "operators after all rewrites",
    "pass": "passes that changed a graph",
    "sdpa": "backends of scaled_dot_product_attention",
}
"""What the page calls things that were reached, by the first word of their names."""
_COLUMNS = {Verdict.RANDOM_STREAM: "other random numbers, not compared"}


class Timeline(Counts):
    """A campaign in seconds of its own time, which stands still while it is stopped.

    `sessions`: how often it was started; `rewrites`, `others`: how many distinct ones were known when, and other things
    of the compiler; `found`: when findings were saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self.first_event = self.last_event = 0.0
        self.sessions = 0
        self.rewrites: list[tuple[float, int]] = []
        self.others: list[tuple[float, int]] = []
        self.found: list[float] = []
        self._before = self._began = 0.0

    @classmethod
    def read(cls, run: Path) -> "Timeline":
        """The timeline of a run directory, which may be written to still; an empty one where there are no events."""
        timeline = cls()
        for event, when in read_events(run):
            timeline.on_event(event, when)
        return timeline

    def on_event(self, event: Event, when: float) -> None:
        """Add one event."""
        self.first_event = self.first_event or when
        self.last_event = when
        if isinstance(event, CampaignStarted):
            self._before, self._began = self.seconds, when
            self.sessions += 1
        if not self.sessions:
            return
        self.seconds = self._before + max(when - self._began, 0.0)
        super().on_event(event, when)
        if isinstance(event, CaseJudged):
            self._grow(self.rewrites, self.fired)
            self._grow(self.others, self.reached)
        elif isinstance(event, FindingSaved) and not event.internal:
            self.found.append(self.seconds)

    def _grow(self, curve: list[tuple[float, int]], known: Sized) -> None:
        if len(known) > (curve[-1][1] if curve else 0):
            curve.append((self.seconds, len(known)))


def draw_coverage(timeline: Timeline) -> str:
    """How many distinct rewrites, and other parts of the compiler, were reached when, as SVG text; "" without any."""
    if not timeline.rewrites and not timeline.others:
        return ""
    units = {"hours": 3600, "minutes": 60, "seconds": 1}
    unit = next((name for name, seconds in units.items() if timeline.seconds >= 3 * seconds), "seconds")
    figure = Figure(figsize=(5.2, 2.5), layout="constrained")
    ax = figure.subplots()
    ax.set(xlabel=unit, ylabel="reached so far", xlim=(0, max(timeline.seconds, 1.0) / units[unit]))
    ax.grid(color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    curves = ((timeline.others, "0.55", "--", "other parts"), (timeline.rewrites, "0.0", "-", "rewrites"))
    for curve, colour, style, label in (one for one in curves if one[0]):
        times, counts = zip((0.0, 0), *curve, (timeline.seconds, curve[-1][1]), strict=True)
        ax.step([at / units[unit] for at in times], counts, colour, where="post", linestyle=style, label=label)
    ax.set_ylim(bottom=0)
    if timeline.found:
        found = [at / units[unit] for at in timeline.found]
        (marks,) = ax.plot(found, [0.02] * len(found), "^", color="#c1121f", markersize=6, label="findings")
        marks.set(transform=ax.get_xaxis_transform(), clip_on=False, zorder=5)
    figure.legend(loc="outside upper left", frameon=False, ncols=3, fontsize=8)
    buffer = io.StringIO()
    with rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def describe_campaign(run: Path, results: Results, timeline: Timeline) -> dict[str, object]:
    """The campaign of a run directory, as the page's template reads it."""
    verdicts, svg = timeline.verdicts, draw_coverage(timeline)
    kinds: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for thing, count in timeline.reached.most_common():
        kind, _, name = thing.partition(" ")
        kinds[kind].append((name, count))
    return {
        "name": run.resolve().name,
        "state": _describe_state(timeline),
        "facts": _list_facts(timeline, results),
        "chart": embed("image/svg+xml", svg.encode()) if svg else "",
        "verdicts": verdicts,
        "columns": [
            (one, _COLUMNS.get(one, spell_out(one)))
            for one in Verdict
            if any(one in counts for counts in verdicts.values())
        ],
        "outcomes": [(_describe_outcome(name), count) for name, count in results.outcomes().items()],
        "rejected": timeline.rejected.most_common(_MAX_REASONS),
        "faults": [(fault.text.strip(), fault.path) for fault in timeline.faults],
        "tables": [
            ("rewrites", timeline.fired.most_common()),
            *((_KINDS.get(kind, f"of kind {kind}"), kinds[kind]) for kind in sorted(kinds)),
        ],
    }


def _describe_outcome(name: str) -> str:
    known = {"waiting": "not investigated yet", **{str(one): one.explanation for one in Outcome}}
    return known.get(name, str(name))  # of another version


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
    workers, checks = max(1, started.workers), timeline.cases + timeline.probes
    rate = checks / timeline.seconds if timeline.seconds else 0.0
    share = min(timeline.torch_seconds / (timeline.seconds * workers), 1.0) if timeline.seconds else 0.0
    sessions = f" in {timeline.sessions} sessions" if timeline.sessions > 1 else ""
    facts = [
        ("torch", f"{started.torch} with Python {started.python}"),
        ("device", f"{started.device} ({started.device_name}), {format_count(workers, 'worker')}"),
        ("seed", str(results.meta("seed") or started.seed)),
        ("started", f"{format_time(timeline.first_event)} UTC"),
        ("ran for", f"{format_duration(timeline.seconds)}{sessions}; budget of the last session: {started.budget}"),
        ("cases", f"{timeline.cases}; eager refused {timeline.rejected.total()} of them"),
        ("checks", f"{checks}, including shrinking and confirming; {rate:.1f} a second"),
        ("time in torch", f"{share:.0%} of the workers' time"),
        ("subjects", ", ".join(started.subjects)),
    ]
    return [*facts, *([("lost", describe_losses(timeline.deaths))] if timeline.deaths else [])]
