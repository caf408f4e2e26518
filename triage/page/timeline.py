"""A campaign over time and what it reached, from the events of its run directory."""

from collections.abc import Sized
from pathlib import Path

from fuzz.events import CampaignStarted, CaseJudged, Counts, Event, FindingSaved, read_events


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
