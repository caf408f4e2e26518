"""What the events of a run directory tell: how a campaign went over time, and what it reached."""

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.runs import EVENTS_FILE


@dataclass(slots=True)
class Timeline:
    """A campaign over its own time: seconds in which it ran, however often it was stopped and continued.

    `cases`, `checks`: when each case was judged, and each check of any kind; `rewrites`, `reached`: how many different
    ones were known at a time; `found`: when findings were saved; `fired` and `things`: how many cases met each rewrite
    and each other thing of the compiler.
    """

    seconds: float = 0.0
    first_event: float = 0.0
    last_event: float = 0.0
    started: Mapping[str, Any] = field(default_factory=dict)
    """The last `CampaignStarted`; empty before the first."""
    sessions: int = 0
    ended: str = ""
    """Why the last session ended; "" while it runs, or where it was killed."""
    rejected: int = 0
    torch_seconds: float = 0.0
    cases: "array[float]" = field(default_factory=lambda: array("d"))
    checks: "array[float]" = field(default_factory=lambda: array("d"))
    rewrites: list[tuple[float, int]] = field(default_factory=list)
    reached: list[tuple[float, int]] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    things: Counter[str] = field(default_factory=Counter)
    faults: list[Mapping[str, Any]] = field(default_factory=list)
    deaths: int = 0
    _before: float = 0.0
    _began: float = 0.0

    @classmethod
    def read(cls, run: Path) -> "Timeline":
        """The timeline of a run directory, which may be written to still; an empty one where there are no events."""
        timeline = cls()
        for event in _events(run / EVENTS_FILE):
            timeline.hear(event)
        return timeline

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        when = float(event["time"])
        self.first_event = self.first_event or when
        self.last_event = when
        if event["event"] == "CampaignStarted":
            self._before, self._began = self.seconds, when
            self.started, self.ended = event, ""
            self.sessions += 1
        if not self.sessions:
            return
        at = self.seconds = self._before + max(when - self._began, 0.0)
        match event["event"]:
            case "CaseJudged":
                self.cases.append(at)
                self.checks.append(at)
                self.rejected += event.get("rejected") is not None
                self.torch_seconds += float(event.get("torch_seconds", 0.0))
                _grow(self.fired, self.rewrites, event.get("fired", ()), at)
                _grow(self.things, self.reached, event.get("reached", ()), at)
            case "ProbeJudged":
                self.checks.append(at)
                self.torch_seconds += float(event.get("torch_seconds", 0.0))
            case "FindingSaved" if not event.get("internal"):
                self.found.append(at)
            case "WorkerFailed":
                self.faults.append(event)
            case "WorkerDied":
                self.deaths += 1
            case "CampaignEnded":
                self.ended = str(event.get("reason", "")) or "ended"


def _grow(counts: Counter[str], curve: list[tuple[float, int]], names: object, at: float) -> None:
    before = len(counts)
    if isinstance(names, list):
        counts.update(str(name) for name in names)
    if len(counts) > before:
        curve.append((at, len(counts)))


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events in order; a line that a kill or a writer at work left incomplete is passed over."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError:
        return
    with file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event and isinstance(event.get("time"), (int, float)):
                yield event
