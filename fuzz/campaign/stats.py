"""The numbers of a campaign, for the screen and the summary."""

import json
import time
from collections import Counter, deque

from fuzz import events
from fuzz.durations import format_count
from fuzz.protocol.codec import encode
from fuzz.run_store import WITH, Results

_REWRITE = "rewrite "
_WRITE_SECONDS = 2.0
_RECENT_WRITES = 30
"""What is called recent: the last minute."""


class Statistics(events.Counts):
    """Counts events of all runs in a directory; what begins with `earlier` is of those before this one, and `elapsed`
    and `outcomes` are of this one. `fired`, `reached`: names of what cases reached in compilers."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self._results = results
        vars(self).update(vars(events.Counts.load(results)))
        cursor, beyond = results.position()
        self.cases = cursor + len(beyond)  # a kill costs the others two seconds
        self.earlier_cases, self.earlier_seconds, self.earlier_faults = self.cases, self.seconds, len(self.faults)
        rows = results.findings()
        self.findings = Counter(row.result.verdict.value for row in rows if row.kind == "new")
        self.known = Counter({row.case_id: row.count for row in rows if row.kind == "known"})
        """By case id of what explains them: failures of known bugs, of earlier runs too."""
        self.elapsed, self._start = 0.0, time.monotonic()
        """Seconds this run has taken, of a clock that nobody sets."""
        self._written: deque[tuple[float, int]] = deque(maxlen=_RECENT_WRITES)
        """When the numbers were stored lately, and how many cases there were."""
        plain = [name for name in results.count_reached() if WITH not in name]
        self.fired = {name.removeprefix(_REWRITE) for name in plain if name.startswith(_REWRITE)}
        self.reached = {name for name in plain if not name.startswith(_REWRITE)}
        self._last_find: float | None = None
        self.outcomes: Counter[str] = Counter()
        self.rss_mib: dict[int, float] = {}
        self.working: dict[int, str] = {}
        """By worker, the suspicion it works on and how far it is."""
        self._worker_of: dict[int, int] = {}

    def on_event(self, event: events.Event, when: float) -> None:
        """Count."""
        super().on_event(event, when)
        self._measure()
        match event:
            case events.CampaignStarted():
                self._start = time.monotonic()
            case events.CaseJudged():
                self.rss_mib[event.worker] = event.rss_mib
                self.fired.update(event.fired)
                self.reached.update(event.reached)
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
                    self._last_find = time.monotonic()
            case events.WorkerStarted():
                self.rss_mib[event.worker] = 0.0
                # The first worker starts before the clock does.
                self.starting_seconds += event.seconds if self.started and not self.ended else 0.0
            case events.WorkerDied():
                self.rss_mib.pop(event.worker, None)
                self.working.pop(event.worker, None)

    def tick(self) -> None:
        """Store the numbers when it is time."""
        self._measure()
        if not self._written or time.monotonic() - self._written[-1][0] >= _WRITE_SECONDS:
            self.close()

    def _measure(self) -> None:
        self.elapsed = time.monotonic() - self._start
        self.seconds = self.earlier_seconds + self.elapsed

    @property
    def since_last_find(self) -> float | None:
        """Seconds since this run saved a finding; None before the first."""
        return None if self._last_find is None else time.monotonic() - self._last_find

    @property
    def rate(self) -> float:
        """Checks per second, including probes."""
        return (self.cases + self.probes) / self.seconds if self.seconds else 0.0

    def share(self, part: float) -> float:
        """The share of these seconds in worker time, without starting up, which is mostly torch's import."""
        seconds = self.seconds * (self.started.workers if self.started else 0) - self.starting_seconds
        return min(part / seconds, 1.0) if seconds > 0 else 0.0

    def close(self) -> None:
        """Store the numbers, unless the campaign was refused."""
        now = time.monotonic()
        self._written.append((now, self.cases))
        before, cases = self._written[0]
        self.recent = (self.cases - cases) / (now - before) if now > before else 0.0
        if self.started is not None:
            self._results.set_meta({"counts": json.dumps(encode(self))})
