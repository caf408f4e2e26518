"""A campaign: slots judge sampled cases and work on suspicions until the budget is spent."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from corpus.ledger import Bug, Ledger
from fuzz.campaign.baseline import Against
from fuzz.campaign.budget import Budget
from fuzz.campaign.events import (
    Bus,
    CampaignEnded,
    CampaignStarted,
    Duplicate,
    FindingSaved,
    ShrinkProgress,
    SuspicionClosed,
    SuspicionOpened,
)
from fuzz.campaign.finding_store import Keeper
from fuzz.campaign.investigate import Conclusion, Outcome, Stopped, investigate
from fuzz.campaign.libfuzzer import LibFuzzerSlot
from fuzz.campaign.schedule import Indices, Schedule
from fuzz.campaign.search import Guided, Random, Search
from fuzz.campaign.search_queue import Queue
from fuzz.campaign.store import Results, Suspicion
from fuzz.campaign.suspicion_queue import Desk
from fuzz.campaign.symptom import failure_of
from fuzz.campaign.worker_thread import Slot
from fuzz.evaluator import WorkerConfig, public_version
from fuzz.localisation import describe_where
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.subjects import is_named
from generators.errors import UserError
from generators.program.case import Case
from generators.program.emit import source
from generators.sampling.sample import ANY, SampleSpec

SUSPICION_SHARE = 0.5
"""The share of worker time that showing, shrinking and confirming may take while cases are left to judge."""

_LAST_SECONDS = 40.0
"""No suspicion is opened this shortly before the end: it would be saved half shrunk. One that is open may go on for
`_GRACE_SECONDS` after it."""
_GRACE_SECONDS = 20.0
_TICK_SECONDS = 0.2

Sampler = Callable[..., Case]
"""Gives the case of a seed and an index; with `contracted=True`, one whose attention a contract describes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a campaign is asked to do. `shrink_seconds`: wall time to shrink one suspicion; `engine`: one of ENGINES;
    `seeds`: cases a guided search or libFuzzer begins with; `ledger`: the bugs people decided about."""

    budget: Budget
    seed: int
    workers: int
    subjects: tuple[str, ...]
    out: Path
    corpus: Path
    known: tuple[Path, ...]
    setup: WorkerConfig
    shrink_seconds: float = 60.0
    fail_fast: bool = False
    engine: str = "random"
    seeds: tuple[Case, ...] = ()
    ledger: Ledger | None = None
    against: WorkerConfig | None = None
    """Workers of another interpreter: what fails there too is no finding."""


class Campaign:
    """One run. Threads of slots call everything but `prepare`, `run` and `interrupt`, which are the main thread's."""

    def __init__(self, options: Options, results: Results, bus: Bus, sample: Sampler) -> None:
        self.options, self.results, self.bus, self.sample = options, results, bus, sample
        self.seed, self.out = options.seed, options.out
        self.schedule = Schedule(options.subjects)
        self.desk = Desk(results, bus)
        self.keeper = Keeper(
            results, self.desk, options.corpus, options.out / "internal", list(options.known), options.ledger
        )
        cursor, beyond = results.position()
        self.indices = Indices(cursor, beyond, options.budget)
        self.search = self._searched()
        kind = LibFuzzerSlot if options.engine == "atheris" else Slot
        self.slots = [kind(self, number, options.setup, options.out) for number in range(options.workers)]
        self.killed = False
        """Workers were ended with their cases unfinished: nothing they say counts."""
        self.new = 0
        """Findings saved by this run, of eager only where something else than the user's own functions was asked about."""
        self.against = ""
        """The torch version that is held against this campaign's."""
        self._contracted = False
        self._reason = ""
        self._began = time.monotonic()
        self._spent_on_suspicions = 0.0
        self._open: dict[int, float] = {}
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    def prepare(self) -> Hello:
        """Start the first worker and load what is known. Raises `UserError` when the campaign can't run."""
        self._prepare_rival()
        hello = self.slots[0].start_worker()
        self._contracted = set(self.options.subjects) <= set(hello.attention)
        if self._contracted:
            # In a compiler they reach nothing, and few seeds hold what they take.
            self.search = Random(self._draw)
        if self._contracted and self.options.engine == "atheris":
            raise UserError("--engine atheris follows Inductor: of --subject, one that compiles the case is needed")
        self.desk.attention = frozenset(hello.attention)
        findings = self.keeper.load(hello)
        for suspicion in self.results.waiting():
            self.desk.put(suspicion)
        options = self.options
        self.bus.emit(
            CampaignStarted(
                seed=self.seed,
                index=self.results.position()[0],
                budget=str(options.budget),
                out=str(self.out),
                corpus=str(options.corpus),
                subjects=options.subjects,
                workers=options.workers,
                torch=hello.torch,
                python=hello.python,
                device=hello.device,
                device_name=hello.device_name,
                known=findings,
                pending=self.desk.waiting,
                against=self.against,
                missing_hooks=hello.missing_hooks,
            )
        )
        return hello

    def _prepare_rival(self) -> None:
        rival = self.slots[0].rival
        self.against = public_version(rival.hello.torch) if rival is not None else ""
        before = self.results.meta("against")
        if before not in (None, self.against):
            given = f"--against torch {before}" if before else "no --against"
            raise UserError(f"--out {self.out} holds a run with {given}: go on with that, or give another --out")
        self.results.set_meta({"against": self.against})

    def _searched(self) -> Search:
        if self.options.engine == "guided":
            return Guided(self._draw, self.options.seed, self.options.seeds, self.results)
        # libFuzzer draws cases itself; what they reach is kept.
        return Random(self._draw, Queue(self.results) if self.options.engine == "atheris" else None)

    def _draw(self, index: int, spec: SampleSpec = ANY) -> Case:
        """Case number `index` of the seed: where all subjects compute attention alone, one they can take."""
        if self._contracted:
            return self.sample(self.seed, index, contracted=True)
        return self.sample(self.seed, index, spec=spec)

    def run(self) -> str:
        """Work until the budget is spent, or something stops it; gives the reason. Raises what a slot raised."""
        self._began = time.monotonic()
        for slot in self.slots:
            slot.start()
        while any(slot.is_alive() for slot in self.slots):
            self.bus.tick()
            self.slots[0].join(_TICK_SECONDS)
            if not self.slots[0].is_alive():
                time.sleep(_TICK_SECONDS / 4)
        reason = self._reason or "budget spent"
        self.bus.emit(CampaignEnded(reason, self.new, self.desk.waiting, time.monotonic() - self._began))
        for slot in self.slots:
            if slot.fault is not None:
                raise slot.fault
        return reason

    def stop(self, reason: str) -> None:
        """Finish the cases in hand and end. The first reason is the one that is told."""
        self._reason = self._reason or reason

    def kill(self) -> None:
        """End at once; cases in hand are judged by the next run."""
        self.stop("stopped")
        self.killed = True
        for slot in self.slots:
            slot.kill()

    def close(self) -> None:
        """End whatever still runs: workers whose thread never began, all of them after a fault."""
        if any(slot.is_alive() for slot in self.slots):
            self.kill()
        for slot in self.slots:
            if slot.is_alive():
                slot.join()
            slot.close()

    @property
    def stopped(self) -> bool:
        """Whether something other than the budget ends the campaign."""
        return bool(self._reason)

    def over(self) -> bool:
        """Whether no new case or suspicion is to be begun."""
        return self.stopped or self._left() <= 0

    def drained(self) -> bool:
        """With all cases judged: whether there is nothing left to work on, nor about to be."""
        with self._lock:
            return not self._open and not self.desk.due

    def _left(self) -> float:
        """Seconds of the budget that are left."""
        seconds = self.options.budget.seconds
        return math.inf if seconds is None else seconds - (time.monotonic() - self._began)

    def take_suspicion(self) -> tuple[Suspicion, str] | None:
        """A suspicion to work on now, with its signature; None while cases come first."""
        with self._lock:
            now = time.monotonic()
            spent = self._spent_on_suspicions + sum(now - began for began in self._open.values())
            available = (now - self._began) * len(self.slots)
            if self.indices.left and (spent > SUSPICION_SHARE * available):
                return None
            if self._left() < min(_LAST_SECONDS, (self.options.budget.seconds or 0.0) / 4):
                return None
            taken = self.desk.take()
            if taken is not None:
                self._open[taken[0].id] = now
            return taken

    def work_on(self, suspicion: Suspicion, signature: str, slot: Slot) -> None:
        """Show, shrink and confirm a suspicion; save what comes of it."""
        began, fruitful = time.monotonic(), None
        self.bus.emit(SuspicionOpened(suspicion.id, suspicion.case.id, slot.number, len(suspicion.case.ops)))
        probes = 0

        def probe(case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
            nonlocal probes
            probes += 1
            if self.stopped:
                # It stays in the store and is taken up by the next run.
                raise Stopped
            return slot.probe(case, subject, fresh=fresh)

        def time_is_up() -> bool:
            return self._left() < -_GRACE_SECONDS or time.monotonic() - began > self.options.shrink_seconds

        def progress(case: Case) -> None:
            self.bus.emit(ShrinkProgress(suspicion.id, case.id, len(case.ops), probes))

        def probe_against(case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
            if self.stopped:
                raise Stopped
            return slot.probe_against(case, subject, fresh=fresh)

        against = Against(probe, probe_against, self.against) if self.against else None
        try:
            conclusion = against.before(suspicion.case, suspicion.result) if against else None
            conclusion = conclusion or investigate(
                suspicion.case,
                suspicion.result,
                self.schedule.public,
                against or probe,
                time_is_up,
                progress,
                contracted=suspicion.result.subject in self.desk.attention,
            )
            seen = against.seen(conclusion) if against else {}
            conclusion = against.after(conclusion) if against else conclusion
            fruitful = self._conclude(suspicion, conclusion, slot, time.monotonic() - began, seen)
        finally:
            with self._lock:
                self._open.pop(suspicion.id)
                self._spent_on_suspicions += time.monotonic() - began
            self.desk.done(signature, fruitful=fruitful)

    def _conclude(
        self, suspicion: Suspicion, conclusion: Conclusion, slot: Slot, seconds: float, seen: Mapping[str, str]
    ) -> bool | None:
        outcome, message = conclusion.outcome, conclusion.message
        found, explained = outcome in (Outcome.FINDING, Outcome.INTERNAL), None
        if found:
            hello = slot.start_worker()
            symptom = self.desk.symptom(conclusion.cheap, conclusion.case)
            # Two slots may come to the same minimum at once.
            with self._saving:
                explained = (
                    self.desk.finding(conclusion.case.id)
                    or self.keeper.explanation(conclusion, hello)
                    or self.desk.explanation(symptom)
                )
                if explained is None:
                    self._save(suspicion, conclusion, hello, seen)
                else:
                    found, outcome = False, Outcome.DUPLICATE
                    message = f"its minimum is explained by {explained.case_id}"
        if not found:
            self.results.settle(suspicion.id, outcome, message, explained.case_id if explained else None)
        self.bus.emit(SuspicionClosed(suspicion.id, suspicion.case.id, outcome, message, seconds))
        if explained is not None:
            self.bus.emit(Duplicate(suspicion.case.id, conclusion.shown.verdict, explained.case_id, explained.known))
        # That another version fails too was soon known, and says nothing of the next failure of this kind.
        return None if outcome in (Outcome.IN_BOTH, Outcome.NOT_COMPARED) else found

    def _save(self, suspicion: Suspicion, conclusion: Conclusion, hello: Hello, seen: Mapping[str, str]) -> None:
        path = self.keeper.save(suspicion.id, conclusion, hello, seen)
        case, shown = conclusion.case, conclusion.shown
        new = conclusion.outcome is Outcome.FINDING
        # Whoever asks about functions of theirs alone did not ask about eager.
        about_asked = new and not (shown.verdict is Verdict.EAGER_SUSPECT and all(map(is_named, self.options.subjects)))
        self.new += about_asked
        bug = self.keeper.listed(case, conclusion.cheap)
        self.bus.emit(
            FindingSaved(
                case=case.id,
                verdict=shown.verdict,
                subject=shown.subject,
                message=describe(shown),
                failure=failure_of(shown),
                numbers=shown.numbers,
                fired=shown.fired,
                same=shown.same,
                ops=len(case.ops),
                path=str(path),
                internal=not new,
                source=source(case),
                where=describe_where(case, shown.where),
                ledger=_in_ledger(bug) if bug else "",
                seen=seen,
            )
        )
        if about_asked and self.options.fail_fast:
            self.stop("first finding (--fail-fast)")


def _in_ledger(bug: Bug) -> str:
    if bug.status.is_open:
        return f"in the ledger, and nobody decided about it yet: {bug.id}: {bug.title}"
    return f"regression: fixed in {bug.status.about} and back: {bug.title}"
