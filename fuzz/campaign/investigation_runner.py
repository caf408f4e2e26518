"""Decides when an investigation begins and when new cases go first, and investigates."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from corpus.entry import Entry, Expectation
from fuzz.ask.question import AnswerCache, Asker, ProcessState, Question
from fuzz.ask.transport import WorkerUnavailable
from fuzz.ask.worker_process import Stopped, WorkerLost
from fuzz.attribution.attribute import find_cause
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.stored import cause_path, write_cause
from fuzz.attribution.study import Study
from fuzz.bug_identity import Signature, Symptom
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.crew import Crew
from fuzz.campaign.investigation import CONFIRMATIONS, Conclusion, Investigation
from fuzz.campaign.options import DiskFull
from fuzz.campaign.run_case import run_case
from fuzz.campaign.saved_findings import SavedFindings, make_entry
from fuzz.campaign.time_shares import FRUITLESS_SHARE, LONG_SHARE, MANY_WAITING, SHARE, TimeShares
from fuzz.durations import format_count
from fuzz.events import SuspicionClosed, SuspicionExamined
from fuzz.known_bugs import KnownBug, NoTimeLeft, find_decided, identify
from fuzz.run_store import Suspicion, SuspicionOutcome
from generators.errors import UserError


class InvestigationRunner:
    """Takes suspicions from the queue, investigates them in the threads that call, and has findings saved. Threads
    share it."""

    def __init__(self, state: CampaignState) -> None:
        self.findings = SavedFindings(state)
        self.baseline_version = ""  # the version in which `--against` differs
        self.state = state
        options, cores = state.options, len(os.sched_getaffinity(0))
        # Remote workers have cores of their own, and a baseline is asked about each failure before the next.
        is_serial = options.open_remote is not None or options.against is not None
        self._at_once = 1 if is_serial else max(1, min(CONFIRMATIONS, cores // options.workers))
        self._times = TimeShares(options, state.stop)
        self._lock = threading.Lock()

    @property
    def open(self) -> int:
        """The number of suspicions that are being investigated."""
        return self._times.open

    @property
    def is_drained(self) -> bool:
        """Whether no suspicion waits or is being investigated. Final only after all cases are judged."""
        with self._lock:
            return not self.open and not self.state.suspicions.waiting

    def take(self, *, cases_left: bool) -> tuple[Suspicion, Signature | list[KnownBug]] | None:
        """The next suspicion, with its signature to be investigated, or with the findings that it looks like to be
        examined. None if new cases come first, or none may start."""
        state, times = self.state, self._times
        with self._lock:
            is_late, queue = times.is_late, state.suspicions
            # The first bug that is shown goes before all else, and a known bug takes the least time.
            taken: tuple[Suspicion, Signature | list[KnownBug]] | None
            taken = None if is_late or state.schedule.has_shown else queue.take_alike()
            if taken is None and not (is_late or (cases_left and times.is_above(self._share))):
                is_idle = not cases_left or not times.is_above(FRUITLESS_SHARE)
                every = not cases_left or times.has_time_for_exceptions
                taken = queue.take(with_exceptions=every) or queue.take_alike()
                taken = taken or (queue.take(even_fruitless=True, with_exceptions=every) if is_idle else None)
            if taken is not None:
                times.begin()
            return taken

    @property
    def _share(self) -> float:
        """The share of worker time for investigations."""
        options, waiting = self.state.options, self.state.suspicions.waiting
        return LONG_SHARE if options.is_of_user or waiting > MANY_WAITING * options.workers else SHARE

    def _let_cases_go_first(self, crew: Crew) -> None:
        """Judge new cases while the calling thread's investigation is above its share."""
        state = self.state
        while state.numbers.has_next and not state.stop.is_over and self._times.owes_cases(self._share):
            with self._times.own.pause():
                if not run_case(state, crew):
                    return

    def work_on(self, suspicion: Suspicion, reason: Signature | list[KnownBug], crew: Crew) -> None:
        """Investigate a suspicion and save the finding; or examine whether it is a finding that it looks like. Raises
        `Stopped` and `WorkerLost`."""
        try:
            if isinstance(reason, Signature):
                self._investigate(suspicion, reason, crew)
            else:
                self._examine(suspicion, reason, crew)
        except WorkerLost:
            self.state.suspicions.put(suspicion)
            raise
        finally:
            self._times.end(is_exception=isinstance(reason, Signature) and self.state.suspicions.is_exception(reason))

    def _experiment(self, suspicion: Suspicion, crew: Crew) -> AnswerCache:
        """Asks the crew for experiments about a suspicion. Raises `NoTimeLeft` when the time for these is over."""
        watch = self._times.own
        began = watch.seconds

        def begin(_: Question) -> None:
            self._let_cases_go_first(crew)
            if self.state.stop.is_over:
                raise Stopped
            if watch.seconds - began > self.state.options.shrink_seconds:
                raise NoTimeLeft("the time for experiments is over")
            crew.task = f"suspicion {suspicion.id}, experiment {memory.asked + 1}"

        memory = AnswerCache(crew, begin)
        return memory

    def _examine(self, suspicion: Suspicion, alike: list[KnownBug], crew: Crew) -> None:
        """Close a suspicion if experiments show that it is one of these findings; else put it back."""
        state, result, began = self.state, suspicion.result, self._times.own.seconds
        experimenter = self._experiment(suspicion, crew)
        expected = Expectation("known", subject=result.subject, device=experimenter.config.device)
        study = Study(experimenter, Entry(suspicion.case, expect=expected), result.subject, result)
        finding = None
        with suppress(NoTimeLeft):  # a slow case is not examined again and again
            finding = find_decided(alike, study, state.known_bugs, partial(self._seek_cause, experimenter))
        if finding is None:
            state.suspicions.put(suspicion, [one.case_id for one in alike])
        else:
            state.results.close_suspicion(suspicion.id, SuspicionOutcome.DUPLICATE, finding.case_id)
            state.announce_bug(finding, suspicion.case)
        self._note_examined(suspicion, finding, experimenter, began)

    def _note_examined(
        self, suspicion: Suspicion, finding: KnownBug | None, experimenter: AnswerCache, began: float
    ) -> None:
        found, seconds = finding.case_id if finding else "", self._times.own.seconds - began
        event = SuspicionExamined(suspicion.id, suspicion.case.id, found, experimenter.asked, seconds)
        self.state.bus.emit(event)

    def _investigate(self, suspicion: Suspicion, signature: Signature, crew: Crew) -> None:
        state, times, watch, fruitful = self.state, self._times, self._times.own, None

        def begin(questions: Sequence[Question]) -> None:
            is_fresh = ProcessState.FRESH in questions[0].process
            if not is_fresh:  # The process of a confirmation is used once.
                self._let_cases_go_first(crew)
            if state.stop.is_stopped:
                raise Stopped  # It stays in the store, for the next run.
            step, ops = "confirming" if is_fresh else "shrinking", format_count(len(questions[0].case.ops), "op")
            checks = format_count(len(questions), "check")
            crew.task = f"suspicion {suspicion.id}, {step} {ops} in {checks} up to {investigation.probes}"

        def is_time_up() -> bool:
            limit = state.options.shrink_seconds * (1 + investigation.needs_history)
            return times.is_time_to_confirm or watch.seconds > limit

        investigation = Investigation(
            suspicion.case,
            suspicion.result,
            state.schedule.public,
            crew,
            is_time_up,
            begin=begin,
            attention_only=suspicion.result.subject in state.known_bugs.attention,
            baseline_version=self.baseline_version,
            at_once=self._at_once,
            history=lambda: state.results.history(suspicion.id),
        )
        try:
            fruitful = self._conclude(suspicion, investigation, crew)
        finally:
            crew.end_helpers()
            state.suspicions.finish(signature, fruitful=fruitful)

    def _conclude(self, suspicion: Suspicion, investigation: Investigation, crew: Crew) -> bool | None:
        """Investigate, record the outcome, and return whether it is a new finding. None if the outcome says nothing
        about other failures with the signature."""
        state, conclusion, finding = self.state, investigation.run(), None
        outcome, message = conclusion.outcome, conclusion.message
        is_shown, is_alike, stopped = outcome in (SuspicionOutcome.FINDING, SuspicionOutcome.INTERNAL), False, False
        if is_shown:
            models, seen = state.options.models, investigation.seen_in_baseline(conclusion)
            near = models.describe(suspicion.case) if models is not None else ""
            notes = [f"found in {near}, then shrunk"] * bool(near)
            notes += [f"rewrites {line}" for line in investigation.list_changed_rewrites(conclusion)]
            entry = make_entry(conclusion, crew.hello, seen, "; ".join(notes))
            symptom = state.known_bugs.symptom(conclusion.cheapest_result, conclusion.case)
            is_alike = bool(state.known_bugs.list_alike(symptom))
            finding, stopped = self._save_unless_known(suspicion, conclusion, entry, symptom, crew)
        is_new = finding is None and is_shown
        if finding is not None:
            outcome, message = SuspicionOutcome.DUPLICATE, f"its minimum is explained by {finding.case_id}"
        if not is_new:
            state.results.close_suspicion(suspicion.id, outcome, finding.case_id if finding else None)
        if finding is not None:
            state.announce_bug(finding, suspicion.case)
        state.bus.emit(SuspicionClosed(suspicion.id, suspicion.case.id, outcome, message, investigation.probes))
        if stopped:
            raise Stopped
        # in both, not compared    neither fruitful nor fruitless: they take little time
        # a finding                neither, if experiments decide it: it says nothing about other bugs
        # anything else            fruitful, if it is new and unlike known bugs
        neutral = (SuspicionOutcome.IN_BOTH, SuspicionOutcome.NOT_COMPARED)
        return None if outcome in neutral or (finding and finding.decided_by) else is_new and not is_alike

    def _save_unless_known(
        self, suspicion: Suspicion, conclusion: Conclusion, entry: Entry, symptom: Symptom, crew: Crew
    ) -> tuple[KnownBug | None, bool]:
        """The known finding that a minimal case is; None if it is new, and saved now. With it, whether the campaign
        stopped before the cause of a new finding was found.

        Other threads and campaigns may save findings while experiments run. Experiments are run again as long as such a
        finding may be the same bug.
        """
        state, result = self.state, conclusion.cheapest_result
        known_bugs, known, cause = state.known_bugs, None, None
        experimenter, began = self._experiment(suspicion, crew), self._times.own.seconds
        study, examined, stopped = Study(experimenter, entry, result.subject, result), None, False
        seek = partial(self._seek_cause, experimenter)
        while True:
            with self.findings.exclude_others():
                known = known or known_bugs.find(symptom, conclusion.case, cause)
                possible = {one.case_id for one in known_bugs.list_possible(symptom)}
                if known is not None or stopped or possible == examined:
                    finding = self.findings.save(suspicion, conclusion, entry, symptom, known, cause)
                    break
            examined = possible
            try:
                known, cause = identify(study, known_bugs, seek=seek, cause=cause)
            except Stopped:
                if possible:
                    raise  # a known bug, perhaps: the suspicion stays in the store, for the next run
                stopped = True  # the finding is saved first
        if examined is not None:
            self._note_examined(suspicion, finding, experimenter, began)
        return finding, stopped

    def _seek_cause(self, asker: Asker, entry: Entry) -> RootCause | None:
        """The cause of a finding, which the run directory keeps; None if it shows no bug here, or can't be judged."""
        try:
            cause = find_cause(entry, asker)
        except (NoTimeLeft, DiskFull, WorkerUnavailable):
            raise  # which say nothing of the case
        except UserError:
            return None
        path = cause_path(self.state.options.out, entry, asker.hello.packages, asker.config.device)
        write_cause(path, cause)
        return cause
