"""The numbers of a campaign, for the screen and the summary."""

import time
from collections import Counter

from fuzz import events
from fuzz.campaign.search import WITH
from fuzz.durations import format_count
from fuzz.run_store import Results

_WRITE_SECONDS = 2.0


class Statistics(events.Counts):
    """Counts events. Times are seconds since the epoch. Numbers are of this run; coverage, and what begins with
    `earlier`, are of earlier runs in the directory too."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self._results = results
        cursor, beyond = results.position()
        self.earlier_cases, self.earlier_seconds = cursor + len(beyond), float(results.meta("seconds") or 0.0)
        rows = results.findings()
        self.earlier_findings = Counter(row.result.verdict.value for row in rows if row.kind == "new")
        self.known = Counter({row.case_id: row.count for row in rows if row.kind == "known"})
        """By case id of what explains them: failures of known bugs, of earlier runs too."""
        self._written = 0.0
        self.start_time = self.last_update = time.time()
        for name in (name for name in results.count_reached() if WITH not in name):
            kind, _, rewrite = name.partition(" ")
            (self.fired if kind == "rewrite" else self.reached)[rewrite if kind == "rewrite" else name] += 1
        self.findings: Counter[str] = Counter()
        self.last_find = 0.0
        self.outcomes: Counter[str] = Counter()
        self.starting_seconds = 0.0
        self.rss_mib: dict[int, float] = {}
        self.working: dict[int, str] = {}
        """By worker, the suspicion it works on and how far it is."""
        self._worker_of: dict[int, int] = {}

    def on_event(self, event: events.Event, when: float) -> None:
        """Count."""
        super().on_event(event, when)
        self.last_update = when
        match event:
            case events.CampaignStarted():
                self.start_time = when
            case events.CaseJudged():
                self.rss_mib[event.worker] = event.rss_mib
            case events.SuspicionOpened():
                self._worker_of[event.suspicion] = event.worker
                self.working[event.worker] = f"suspicion {event.suspicion}, {format_count(event.ops, 'op')}"
            case events.ShrinkProgress():
                worker = self._worker_of[event.suspicion]
                ops = f"{format_count(event.ops, 'op')} after {format_count(event.probes, 'check')}"
                self.working[worker] = f"suspicion {event.suspicion}, {ops}"
            case events.SuspicionClosed():
                self.outcomes[event.outcome] += 1
                self.working.pop(self._worker_of.pop(event.suspicion, -1), None)
            case events.Duplicate():
                self.known[event.finding] += event.known
            case events.FindingSaved():
                if not event.internal:
                    self.findings[event.verdict.value] += 1
                    self.last_find = when
            case events.WorkerStarted():
                self.rss_mib[event.worker] = 0.0
                # The first worker starts before the clock does.
                self.starting_seconds += event.seconds if self.started else 0.0
            case events.WorkerDied():
                self.rss_mib.pop(event.worker, None)

    def tick(self) -> None:
        """Store how long the run has taken when it is time."""
        if time.time() - self._written >= _WRITE_SECONDS:
            self.close()

    @property
    def elapsed(self) -> float:
        """Seconds this run has taken."""
        return max(self.last_update if self.ended else time.time(), self.start_time) - self.start_time

    @property
    def rate(self) -> float:
        """Checks per second, including probes."""
        return (self.cases + self.probes) / self.elapsed if self.elapsed else 0.0

    def share(self, part: float) -> float:
        """The share of these seconds in worker time, without starting up, which is mostly torch's import."""
        seconds = self.elapsed * (self.started.workers if self.started else 0) - self.starting_seconds
        return min(part / seconds, 1.0) if seconds > 0 else 0.0

    def close(self) -> None:
        """Store how long the run has taken."""
        self._written = time.time()
        self._results.set_meta({"seconds": str(self.earlier_seconds + self.elapsed)})
