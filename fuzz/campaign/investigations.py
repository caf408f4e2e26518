"""Work on suspicions: when it begins, how long it may take, and what is saved of it."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from fuzz.campaign.finding_store import FindingStore
from fuzz.campaign.investigate import Baseline, Conclusion, investigate
from fuzz.campaign.known_bugs import Explanation, KnownBugs
from fuzz.campaign.options import Options, StopCondition, StopReason
from fuzz.campaign.schedule import CaseNumbers, Schedule
from fuzz.campaign.search import Random
from fuzz.campaign.share import SharedFolder
from fuzz.campaign.suspicion_queue import SuspicionQueue
from fuzz.durations import format_count
from fuzz.error_location import describe_where
from fuzz.events import Bus, FindingSaved, Notice, SuspicionClosed, SuspicionOpened
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.run_store import Outcome, Results, Suspicion
from fuzz.worker_process import Stopped, WorkerLost
from generators.errors import UserError
from generators.program.attention_stub import emit_call
from generators.program.case import Case
from generators.program.emit import source
from generators.program.settings import Setting

_TIME_SHARE, _LONG_TIME_SHARE = 0.5, 0.85
"""The share of worker time for investigations while cases are left; the longer one for functions of the user, and
where `_MANY_WAITING` suspicions wait for each worker."""
_MANY_WAITING = 4
_FRUITLESS_SHARE = 0.2
"""The share up to which suspicions are also investigated whose signature has lately given no finding."""

_LAST_SECONDS = 60.0
"""No investigation begins this close to the end, since its case would be saved half shrunk."""
_LAST_SHARE = 0.33
"""... or within this share of a short budget."""
_CONFIRM_SHARE = 0.67
"""Within this share of that time shrinking ends, since fresh workers take their time to confirm."""


class ProbingWorker(Protocol):
    """The worker of a thread, as far as an investigation needs it."""

    number: int
    task: str

    def start_worker(self) -> Hello:
        """Start the worker, and return its `Hello`."""

    def probe(self, case: Case, subject: str, *, fresh: bool = False, baseline: bool = False) -> SubjectResult | None:
        """Judge a case under one subject; `baseline`: in the interpreter of `--against`."""


class Shared:
    """What the threads of a campaign share; `search`: the source of cases."""

    def __init__(
        self, options: Options, results: Results, bus: Bus, search: Random, share: SharedFolder | None
    ) -> None:
        self.options, self.results, self.bus, self.search, self.share = options, results, bus, search, share
        self.settings: Mapping[str, Setting] = {}
        """Those that cases may get: of the worker's torch and device."""
        self.control = StopCondition(options.budget)
        self.schedule = Schedule(options.subjects)
        self.numbers = CaseNumbers(*results.position(), options.budget)
        self.losses = Counter[str]()
        """How often each case lost its worker."""
        self.known = KnownBugs(options.ledger)
        self.suspicions = SuspicionQueue(results, bus, self.known, share)
        self.findings = FindingStore(options, results, self.known, share)


class Investigations:
    """Takes suspicions from the queue and investigates them in the threads that call. Threads share it."""

    def __init__(self, shared: Shared) -> None:
        self.new = 0
        """Findings saved by this run. Those of eager do not count if only functions of the user's are tested."""
        self.baseline_torch = ""
        """The torch version of `--against`."""
        self.shared = shared
        self._last = min(_LAST_SECONDS, _LAST_SHARE * (shared.options.budget.seconds or 0.0))
        self._seconds = 0.0
        self._open: dict[int, float] = {}
        """When work on each suspicion began."""
        self._lock = threading.Lock()
        self._saving = threading.RLock()

    def learn_shared_findings(self, torch: str) -> None:
        """Take what other campaigns found since the last call for known. `torch`: the worker's version."""
        shared = self.shared
        with self._saving:
            for path, entry in shared.share.take_findings() if shared.share is not None else ():
                try:
                    explanation = shared.findings.learn(entry, path, torch)
                except UserError as error:
                    shared.bus.emit(Notice(text=f"--share: skipped {path}: {error}"))
                    continue
                if explanation is not None:
                    shared.suspicions.settle_explained(explanation)

    @property
    def open(self) -> int:
        """How many suspicions are being worked on."""
        return len(self._open)

    @property
    def is_drained(self) -> bool:
        """Whether no suspicion waits and none is worked on. Only meaningful once all cases are judged."""
        with self._lock:
            return not self._open and not self.shared.suspicions.waiting

    def take(self, *, cases_left: bool) -> tuple[Suspicion, str] | None:
        """A suspicion to work on now, with its signature; None while cases come first."""
        with self._lock:
            now, of_user = time.monotonic(), self.shared.options.is_of_user
            seconds = self._seconds + sum(now - began for began in self._open.values())
            worked = self.shared.control.elapsed * self.shared.options.workers
            is_long = of_user or self.shared.suspicions.waiting > _MANY_WAITING * self.shared.options.workers
            if cases_left and seconds > (_LONG_TIME_SHARE if is_long else _TIME_SHARE) * worked:
                return None
            if self.shared.control.seconds_left < self._last:
                return None
            taken = self.shared.suspicions.take(even_fruitless=not cases_left or seconds < _FRUITLESS_SHARE * worked)
            if taken is not None:
                self._open[taken[0].id] = now
            return taken

    def work_on(self, suspicion: Suspicion, signature: str, worker: ProbingWorker) -> None:
        """Show, shrink and confirm a suspicion; save what comes of it. Raises `Stopped` and `WorkerLost`."""
        began, fruitful = time.monotonic(), None
        self.shared.bus.emit(SuspicionOpened(suspicion=suspicion.id, case=suspicion.case.id, worker=worker.number))
        try:
            conclusion, seen = self._investigate(suspicion, worker, began)
            fruitful = self._conclude(suspicion, conclusion, worker, seen)
        except WorkerLost:
            self.shared.suspicions.put(suspicion)
            raise
        finally:
            with self._lock:
                self._open.pop(suspicion.id)
                self._seconds += time.monotonic() - began
            self.shared.suspicions.finish(signature, fruitful=fruitful)

    def _investigate(
        self, suspicion: Suspicion, worker: ProbingWorker, began: float
    ) -> tuple[Conclusion, Mapping[str, str]]:
        probes = 0

        def probe(case: Case, subject: str, *, fresh: bool = False, baseline: bool = False) -> SubjectResult | None:
            nonlocal probes
            probes += not baseline
            if self.shared.control.is_stopped:
                raise Stopped  # It stays in the store, for the next run.
            step, ops = "confirming" if fresh else "shrinking", format_count(len(case.ops), "op")
            worker.task = f"suspicion {suspicion.id}, {step} {ops} in check {probes}"
            return worker.probe(case, subject, fresh=fresh, baseline=baseline)

        def is_time_up() -> bool:
            late = self.shared.control.seconds_left < _CONFIRM_SHARE * self._last
            return late or time.monotonic() - began > self.shared.options.shrink_seconds

        baseline = Baseline(probe, partial(probe, baseline=True), self.baseline_torch) if self.baseline_torch else None
        conclusion = baseline.conclude_early(suspicion.case, suspicion.result) if baseline else None
        conclusion = conclusion or investigate(
            suspicion.case,
            suspicion.result,
            self.shared.schedule.public,
            baseline or probe,
            is_time_up,
            attention_only=suspicion.result.subject in self.shared.known.attention,
        )
        if baseline is None:
            return conclusion, {}
        return baseline.revise(conclusion), baseline.verdicts_of(conclusion)

    def _conclude(
        self, suspicion: Suspicion, conclusion: Conclusion, worker: ProbingWorker, seen: Mapping[str, str]
    ) -> bool | None:
        """Record the outcome of a suspicion, and return whether it is a new finding; None if that says nothing of other
        failures with its signature."""
        outcome, message, explanation = conclusion.outcome, conclusion.message, None
        found = outcome in (Outcome.FINDING, Outcome.INTERNAL)
        if found:
            hello = worker.start_worker()
            with self._saving:  # Two threads may come to the same minimum at once.
                self.learn_shared_findings(hello.torch)
                explanation = self._explain(conclusion, hello)
                if explanation is None:
                    self._save(suspicion, conclusion, hello, seen)
                else:
                    found, outcome = False, Outcome.DUPLICATE
                    message = f"its minimum is explained by {explanation.case_id}"
        if not found:
            self.shared.results.settle(suspicion.id, outcome, explanation.case_id if explanation else None)
        self.shared.bus.emit(
            SuspicionClosed(suspicion=suspicion.id, case=suspicion.case.id, outcome=outcome, message=message)
        )
        if explanation is not None:
            self.shared.bus.emit(explanation.report(suspicion.case.id, conclusion.shown.verdict))
        # It takes little time to see that the baseline fails too. A duplicate says nothing of other bugs.
        return None if outcome in (Outcome.IN_BOTH, Outcome.NOT_COMPARED, Outcome.DUPLICATE) else found

    def _explain(self, conclusion: Conclusion, hello: Hello) -> Explanation | None:
        """What explains a minimal case: an equal minimum, an entry of the ledger, or a similar finding."""
        explanation = self.shared.known.explain_minimum(conclusion.case.id)
        if explanation is None:
            explanation = self.shared.findings.explain_listed(conclusion, hello)
            if explanation is not None:
                self.shared.suspicions.settle_explained(explanation)
        return explanation or self.shared.known.explain(self.shared.known.symptom(conclusion.proxy, conclusion.case))

    def _save(self, suspicion: Suspicion, conclusion: Conclusion, hello: Hello, seen: Mapping[str, str]) -> None:
        case, shown = conclusion.case, conclusion.shown
        bug = self.shared.known.find_watched(case, self.shared.known.symptom(conclusion.proxy, case))
        path, explanation = self.shared.findings.save(suspicion.id, conclusion, hello, seen)
        self.shared.suspicions.settle_explained(explanation)
        is_public = conclusion.outcome is Outcome.FINDING
        of_eager = shown.verdict is Verdict.EAGER_SUSPECT and self.shared.options.is_of_user
        counts = is_public and not of_eager
        is_call = shown.subject in self.shared.known.attention and shown.verdict is not Verdict.EAGER_SUSPECT
        self.new += counts
        self.shared.bus.emit(
            FindingSaved(
                case=case.id,
                verdict=shown.verdict,
                result=replace(shown, coverage=()),
                ops=len(case.ops),
                path=str(path),
                internal=not is_public,
                source=emit_call(case, shown.subject) if is_call else source(case),
                where=describe_where(case, shown.where),
                ledger=f"regression: fixed in {bug.status.about} and back: {bug.title}" if bug else "",
                seen=seen,
                of_eager=of_eager,
            )
        )
        if counts and self.shared.options.fail_fast:
            self.shared.control.stop(StopReason.FAIL_FAST)
