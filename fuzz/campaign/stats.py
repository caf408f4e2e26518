"""The numbers of a campaign, for the screen and the summary."""

import time
from collections import Counter

from fuzz.campaign import events
from fuzz.campaign.search import WITH
from fuzz.durations import format_count
from fuzz.protocol import Verdict
from fuzz.protocol.failures import normalize
from fuzz.run_store import Results

_WRITE_SECONDS = 2.0


class Statistics(events.Listener):
    """Counts events. Times are seconds since the epoch. Numbers are of this run; coverage, and what begins with
    `earlier`, are of earlier runs in the directory too."""

    def __init__(self, results: Results) -> None:
        self._results = results
        cursor, beyond = results.position()
        self.earlier_cases, self.earlier_seconds = cursor + len(beyond), float(results.meta("seconds") or 0.0)
        rows = results.findings()
        self.earlier_findings = Counter(row.result.verdict.value for row in rows if row.kind == "new")
        self.known = Counter({row.case_id: row.count for row in rows if row.kind == "known"})
        """By case id of what explains them: failures of known bugs, of earlier runs too."""
        self._written = 0.0
        self.started: events.CampaignStarted | None = None
        self.start_time = self.last_update = time.time()
        self.cases = self.compared = self.probes = self.rejected = 0
        """`compared`: cases that a subject took."""
        self.torch_seconds = self.oracle_seconds = 0.0
        """Inside torch; and for the oracle: reference, noise, judgement and all runs to decide."""
        self.verdicts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.skipped: dict[str, Counter[str]] = {}
        """By subject, the reasons for cases it did not take."""
        names = results.count_reached()
        self.rewrites = {name.removeprefix("rewrite ") for name in names if name.startswith("rewrite ")}
        self.reached = {name for name in names if WITH not in name and not name.startswith("rewrite ")}
        """Other compiler events, each a kind and a name."""
        self.findings: Counter[str] = Counter()
        self.last_find = 0.0
        self.outcomes: Counter[str] = Counter()
        self.deaths: list[str] = []
        """Why workers were lost."""
        self.faults: list[events.WorkerFailed] = []
        """Faults of attnfuzz itself."""
        self.starting_seconds = 0.0
        self.rss_mib: dict[int, float] = {}
        self.working: dict[int, str] = {}
        """By worker, the suspicion it works on and how far it is."""
        self.ended = ""
        self._worker_of: dict[int, int] = {}

    def on_event(self, event: events.Event, when: float) -> None:
        """Count."""
        self.last_update = when
        match event:
            case events.CampaignStarted():
                self.started, self.start_time = event, when
            case events.CaseJudged():
                self._case(event)
            case events.ProbeJudged():
                self.probes += 1
                self.torch_seconds += event.torch_seconds
                self.oracle_seconds += event.oracle_seconds
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
                self.deaths.append(event.reason)
                self.rss_mib.pop(event.worker, None)
            case events.WorkerFailed():
                self.faults.append(event)
            case events.CampaignEnded():
                self.ended = event.reason

    def count_met(self, subject: str) -> int:
        """How many cases a subject was given."""
        return sum(count for key, count in self.verdicts.items() if key.rpartition(" ")[0] == subject)

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

    def _case(self, event: events.CaseJudged) -> None:
        self.cases += 1
        self.compared += any(verdict is not Verdict.SKIPPED for verdict in event.verdicts.values())
        self.torch_seconds += event.torch_seconds
        self.oracle_seconds += event.oracle_seconds
        self.rss_mib[event.worker] = event.rss_mib
        if event.rejected is not None:
            self.rejected += 1
            self.reasons[normalize(event.rejected)] += 1
        self.verdicts.update(f"{subject} {verdict}" for subject, verdict in event.verdicts.items())
        for subject, reason in event.skipped.items():
            self.skipped.setdefault(subject, Counter())[normalize(reason)] += 1
        self.rewrites.update(event.fired)
        self.reached.update(event.reached)
