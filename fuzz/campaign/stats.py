"""The numbers of a campaign, for the screen and the summary."""

import json
import math
import time
from collections import Counter

from fuzz import events
from fuzz.protocol.codec import encode
from fuzz.run_store import Results

_REWRITE = "rewrite "
_WRITE_SECONDS = 2.0


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
        self._written = -math.inf
        plain = results.count_reached()
        self.fired = {name.removeprefix(_REWRITE) for name in plain if name.startswith(_REWRITE)}
        self.reached = {name for name in plain if not name.startswith(_REWRITE)}
        self.outcomes: Counter[str] = Counter()

    def on_event(self, event: events.Event, when: float) -> None:
        """Count."""
        super().on_event(event, when)
        self._measure()
        match event:
            case events.CampaignStarted():
                self._start = time.monotonic()
            case events.CaseJudged():
                self.fired.update(event.fired)
                self.reached.update(event.reached)
            case events.SuspicionClosed():
                self.outcomes[event.outcome] += 1
            case events.Duplicate():
                self.known[event.finding] += event.known
            case events.FindingSaved():
                self.findings.update(() if event.internal else (event.verdict.value,))

    def tick(self) -> None:
        """Store the numbers when it is time."""
        self._measure()
        if time.monotonic() - self._written >= _WRITE_SECONDS:
            self.close()

    def _measure(self) -> None:
        self.elapsed = time.monotonic() - self._start
        self.seconds = self.earlier_seconds + self.elapsed

    @property
    def rate(self) -> float:
        """Checks per second, including probes."""
        return (self.cases + self.probes) / self.seconds if self.seconds else 0.0

    def close(self) -> None:
        """Store the numbers, unless the campaign was refused."""
        self._written = time.monotonic()
        if self.started is not None:
            self._results.set_meta({"counts": json.dumps(encode(self))})
