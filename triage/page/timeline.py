"""A campaign over time and what it reached, from the events of its run directory."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus.files import open_file
from fuzz.protocol.failures import normalize
from fuzz.run_store import EVENTS_FILE


@dataclass(slots=True)
class Timeline:
    """A campaign in seconds of its own time, which stands still while it is stopped.

    `started`: the last `CampaignStarted`, empty before the first; `ended`: why the last session ended, "" while it runs
    or where it was killed; `cases`, `checks`: how many cases, and checks of any kind, were judged; `verdicts`: of
    cases, by subject; `rejected`: why eager refused cases; `rewrites`, `reached`: how many distinct ones were known
    when; `found`: when findings were saved; `fired`, `things`: in how many cases each rewrite, and each other thing of
    the compiler, was reached; `deaths`: why workers were lost.
    """

    seconds: float = 0.0
    first_event: float = 0.0
    last_event: float = 0.0
    started: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    subjects: tuple[str, ...] = ()
    sessions: int = 0
    ended: str = ""
    cases: int = 0
    checks: int = 0
    verdicts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    rejected: Counter[str] = field(default_factory=Counter)
    torch_seconds: float = 0.0
    rewrites: list[tuple[float, int]] = field(default_factory=list)
    reached: list[tuple[float, int]] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    things: Counter[str] = field(default_factory=Counter)
    faults: list[Mapping[str, Any]] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    _before: float = 0.0
    _began: float = 0.0

    @classmethod
    def read(cls, run: Path) -> "Timeline":
        """The timeline of a run directory, which may be written to still; an empty one where there are no events."""
        timeline = cls()
        for event in _events(run / EVENTS_FILE):
            with suppress(KeyError, TypeError, ValueError, OverflowError):  # an event of another version
                timeline.record(event)
        return timeline

    def record(self, event: Mapping[str, Any]) -> None:
        """Add one event."""
        when = float(event["time"])
        self.first_event = self.first_event or when
        self.last_event = when
        if event["event"] == "CampaignStarted":
            self.workers, self.subjects = max(1, int(event["workers"])), tuple(map(str, event["subjects"]))
            self._before, self._began = self.seconds, when
            self.started, self.ended = event, ""
            self.sessions += 1
        if not self.sessions:
            return
        at = self.seconds = self._before + max(when - self._began, 0.0)
        match event["event"]:
            case "CaseJudged":
                self.cases += 1
                self.checks += 1
                if event.get("rejected") is not None:
                    self.rejected[normalize(str(event["rejected"]))] += 1
                for subject, verdict in dict(event.get("verdicts", {})).items():
                    self.verdicts[subject][verdict] += 1
                self.torch_seconds += float(event.get("torch_seconds", 0.0))
                _grow(self.fired, self.rewrites, event.get("fired", ()), at)
                _grow(self.things, self.reached, event.get("reached", ()), at)
            case "ProbeJudged":
                self.checks += 1
                self.torch_seconds += float(event.get("torch_seconds", 0.0))
            case "FindingSaved" if not event.get("internal"):
                self.found.append(at)
            case "WorkerFailed":
                self.faults.append(event)
            case "WorkerDied":
                self.deaths.append(str(event.get("reason")))
            case "CampaignEnded":
                self.ended = str(event.get("reason", "")) or "ended"


def _grow(counts: Counter[str], curve: list[tuple[float, int]], names: object, at: float) -> None:
    before = len(counts)
    if isinstance(names, list):
        counts.update(str(name) for name in names)
    if len(counts) > before:
        curve.append((at, len(counts)))


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events in order; incomplete lines, of a killed or working writer, are skipped."""
    if not path.exists():
        return
    with open_file(path) as file:
        for line in file:
            with suppress(KeyError, TypeError, ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event and 0 <= event["time"] < 1 << 33:
                    yield event
