"""Decides when an investigation begins and when new cases go first, and saves findings."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from corpus import entry as corpus_entry
from corpus.entry import Entry, Expectation, Found
from corpus.ledger import Bug
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.worker_process import Stopped, WorkerLost
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.stored import cause_path, read_cause
from fuzz.attribution.study import Study
from fuzz.bug_identity import Signature, Symptom
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.examination import Experimenter, NoTimeLeft, examine_minimum, find_decided
from fuzz.campaign.investigation import CONFIRMATIONS, Conclusion, Investigation
from fuzz.campaign.known_bugs import KnownFinding
from fuzz.campaign.options import StopReason
from fuzz.campaign.share import FINDINGS
from fuzz.campaign.time_shares import FRUITLESS_SHARE, LONG_SHARE, MANY_WAITING, SHARE, TimeShares
from fuzz.durations import format_count
from fuzz.error_location import describe_where
from fuzz.events import FindingSaved, Notice, SuspicionClosed, SuspicionExamined
from fuzz.protocol import Hello, Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.replay_result import read_recorded_result
from fuzz.run_store import FindingRow, Suspicion, SuspicionOutcome
from generators.errors import UserError
from generators.program.case import Case
from generators.records import encode


class ProbingWorker(Protocol):
    """The part of a worker's thread that an investigation needs."""

    task: str
    evaluator: Evaluator

    def receive(self, case: Case, ask: Callable[[], Result]) -> Result:
        """The result of `ask`. Raises `Stopped`, `DiskFull` and `WorkerLost`."""

    def probe(
        self, probes: Sequence[tuple[Case, str]], *, fresh: bool, baseline: bool
    ) -> Sequence[SubjectResult | None]:
        """Judge cases, each under its subject, at once; `baseline`: in the interpreter of `--against`."""

    def end_helpers(self) -> None:
        """End the processes that `probe` started."""

    def judge_case(self) -> bool:
        """Judge and record the next case; False if none is left. Raises as `receive`."""


class InvestigationRunner:
    """Takes suspicions from the queue, investigates them in the threads that call, and saves findings. Threads share
    it."""

    def __init__(self, state: CampaignState) -> None:
        self.new = 0  # new findings, without bugs of eager if only the user's functions are tested
        self.baseline_torch = ""  # the torch version of `--against`
        self.state = state
        options, cores = state.options, len(os.sched_getaffinity(0))
        # Remote workers have cores of their own, and a baseline is asked about each failure before the next.
        is_serial = options.open_remote is not None or options.against is not None
        self._at_once = 1 if is_serial else max(1, min(CONFIRMATIONS, cores // options.workers))
        self._times = TimeShares(options, state.stop)
        self._lock = threading.Lock()
        self._saving = threading.RLock()

    def load_findings(self, torch: str) -> None:
        """Learn every finding of the ledger, on disk and in the store. Raises `CaseError`."""
        options, known_bugs, rows = self.state.options, self.state.known_bugs, self.state.results.findings()
        for path, entry in known_bugs.load_ledger(torch):
            self._add_known(entry, path)
        for row in rows:
            path = Path(row.file)
            if row.kind != "known" and not path.exists():
                corpus_entry.write(row.entry, path)  # Killed between the row and the file.
            cause = read_cause(cause_path(options.out, row.entry, torch, row.entry.device))
            known_bugs.learn(row.entry, from_corpus=row.kind == "known", cause=cause, path=path)
            if row.count:  # an earlier session told of it
                self.state.schedule.has_shown = True
                known_bugs.meet(row.case_id, row.case_id, options.worker_config.device)
        for directory in (*options.ignore_dirs, options.corpus):
            for path, entry in corpus_entry.load_directory(directory).items():
                if known_bugs.learn(entry, torch=torch, path=path) is not None:
                    self._add_known(entry, path)

    def learn_shared_findings(self, torch: str) -> None:
        """Learn the findings that other campaigns made since the last call. `torch`: the worker's version."""
        state = self.state
        with self._saving:
            for path, entry in state.share.take_findings() if state.share is not None else ():
                try:
                    finding = state.known_bugs.learn(entry, torch=torch, path=path)
                    if finding is not None:
                        self._add_known(entry, path)
                        state.suspicions.reconsider(finding)
                except UserError as error:
                    state.bus.emit(Notice(text=f"--share: skipped {path}: {error}"))

    def _add_known(self, entry: Entry, path: Path) -> None:
        self.state.results.add_finding(None, _row(entry, path, "known", 0, read_recorded_result(entry)))

    @property
    def open(self) -> int:
        """The number of suspicions that are being investigated."""
        return self._times.open

    @property
    def is_drained(self) -> bool:
        """Whether no suspicion waits or is being investigated. Final only after all cases are judged."""
        with self._lock:
            return not self.open and not self.state.suspicions.waiting

    def take(self, *, cases_left: bool) -> tuple[Suspicion, Signature | list[KnownFinding]] | None:
        """The next suspicion, with its signature to be investigated, or with the findings that it looks like to be
        examined. None if new cases come first, or none may start."""
        state, times = self.state, self._times
        with self._lock:
            is_late, queue = times.is_late, state.suspicions
            # The first bug that is shown goes before all else, and a known bug takes the least time.
            taken: tuple[Suspicion, Signature | list[KnownFinding]] | None
            taken = None if is_late or state.schedule.has_shown else queue.take_alike()
            if taken is None and not (is_late or (cases_left and times.is_above(self._share))):
                is_idle = not cases_left or not times.is_above(FRUITLESS_SHARE)
                taken = queue.take() or queue.take_alike() or (queue.take(even_fruitless=True) if is_idle else None)
            if taken is not None:
                times.begin()
            return taken

    @property
    def _share(self) -> float:
        """The share of worker time for investigations."""
        options, waiting = self.state.options, self.state.suspicions.waiting
        return LONG_SHARE if options.is_of_user or waiting > MANY_WAITING * options.workers else SHARE

    def _let_cases_go_first(self, worker: ProbingWorker) -> None:
        """Judge new cases while the calling thread's investigation is above its share."""
        state = self.state
        while state.numbers.has_next and not state.stop.is_over and self._times.owes_cases(self._share):
            with self._times.own.pause():
                if not worker.judge_case():
                    return

    def work_on(self, suspicion: Suspicion, reason: Signature | list[KnownFinding], worker: ProbingWorker) -> None:
        """Investigate a suspicion and save the finding; or examine whether it is a finding that it looks like. Raises
        `Stopped` and `WorkerLost`."""
        try:
            if isinstance(reason, Signature):
                self._investigate(suspicion, reason, worker)
            else:
                self._examine(suspicion, reason, worker)
        except WorkerLost:
            self.state.suspicions.put(suspicion)
            raise
        finally:
            self._times.end()

    def _experiment(self, suspicion: Suspicion, worker: ProbingWorker) -> Experimenter:
        watch = self._times.own
        began = watch.seconds

        def begin(number: int) -> None:
            self._let_cases_go_first(worker)
            if self.state.stop.is_over:
                raise Stopped
            if watch.seconds - began > self.state.options.shrink_seconds:
                raise NoTimeLeft("the time for experiments is over")
            worker.task = f"suspicion {suspicion.id}, experiment {number}"

        return Experimenter(worker.evaluator.process, worker.receive, begin)

    def _examine(self, suspicion: Suspicion, alike: list[KnownFinding], worker: ProbingWorker) -> None:
        """Close a suspicion if experiments show that it is one of these findings; else put it back."""
        state, result, began = self.state, suspicion.result, self._times.own.seconds
        experimenter = self._experiment(suspicion, worker)
        expected = Expectation("known", subject=result.subject, device=experimenter.config.device)
        study = Study(experimenter, Entry(suspicion.case, expect=expected), result.subject, result)
        finding = None
        with suppress(NoTimeLeft):  # a slow case is not examined again and again
            finding = find_decided(alike, study, state.known_bugs, state.options.out)
        if finding is None:
            state.suspicions.put(suspicion, [one.case_id for one in alike])
        else:
            state.results.close_suspicion(suspicion.id, SuspicionOutcome.DUPLICATE, finding.case_id)
            state.announce_bug(finding, suspicion.case)
        self._note_examined(suspicion, finding, experimenter, began)

    def _note_examined(
        self, suspicion: Suspicion, finding: KnownFinding | None, experimenter: Experimenter, began: float
    ) -> None:
        found, seconds = finding.case_id if finding else "", self._times.own.seconds - began
        event = SuspicionExamined(suspicion.id, suspicion.case.id, found, experimenter.checks, seconds)
        self.state.bus.emit(event)

    def _investigate(self, suspicion: Suspicion, signature: Signature, worker: ProbingWorker) -> None:
        state, times, watch, fruitful = self.state, self._times, self._times.own, None

        def judge(
            probes: Sequence[tuple[Case, str]], *, fresh: bool, baseline: bool = False
        ) -> Sequence[SubjectResult | None]:
            if not fresh:  # The process of a confirmation is used once.
                self._let_cases_go_first(worker)
            if state.stop.is_stopped:
                raise Stopped  # It stays in the store, for the next run.
            step, ops = "confirming" if fresh else "shrinking", format_count(len(probes[0][0].ops), "op")
            checks = format_count(len(probes), "check")
            worker.task = f"suspicion {suspicion.id}, {step} {ops} in {checks} up to {investigation.probes}"
            return worker.probe(probes, fresh=fresh, baseline=baseline)

        def is_time_up() -> bool:
            limit = state.options.shrink_seconds * (1 + investigation.needs_history)
            return times.is_time_to_confirm or watch.seconds > limit

        investigation = Investigation(
            suspicion.case,
            suspicion.result,
            state.schedule.public,
            judge,
            is_time_up,
            attention_only=suspicion.result.subject in state.known_bugs.attention,
            baseline_torch=self.baseline_torch,
            at_once=self._at_once,
            history=lambda: state.results.history(suspicion.id),
        )
        try:
            fruitful = self._conclude(suspicion, investigation, worker)
        finally:
            worker.end_helpers()
            state.suspicions.finish(signature, fruitful=fruitful)

    def _conclude(self, suspicion: Suspicion, investigation: Investigation, worker: ProbingWorker) -> bool | None:
        """Investigate, record the outcome, and return whether it is a new finding. None if the outcome says nothing
        about other failures with the signature."""
        state, conclusion, finding = self.state, investigation.run(), None
        outcome, message = conclusion.outcome, conclusion.message
        is_shown, is_alike, stopped = outcome in (SuspicionOutcome.FINDING, SuspicionOutcome.INTERNAL), False, False
        if is_shown:
            hello, result = worker.evaluator.hello, conclusion.cheapest_result
            entry = _entry(
                conclusion, hello, investigation.seen_in_baseline(conclusion), self._find_origin(suspicion.case)
            )
            symptom = state.known_bugs.symptom(result, conclusion.case)
            known, cause = state.known_bugs.find(symptom, conclusion.case), None
            is_alike = bool(state.known_bugs.list_alike(symptom))
            if known is None:
                experimenter, began = self._experiment(suspicion, worker), self._times.own.seconds
                study = Study(experimenter, entry, result.subject, result)
                try:
                    known, cause = examine_minimum(study, symptom, state.known_bugs, state.options.out)
                except Stopped:
                    if state.known_bugs.list_possible(symptom):
                        raise  # a known bug, perhaps: the suspicion stays in the store, for the next run
                    stopped = True  # the finding is saved first
                self._note_examined(suspicion, known if isinstance(known, KnownFinding) else None, experimenter, began)
            with self._saving:  # Two threads may come to the same minimum at once.
                self.learn_shared_findings(hello.torch)
                known = known or state.known_bugs.find(symptom, conclusion.case, cause)
                if isinstance(known, KnownFinding):
                    finding = known
                elif known is None or state.known_bugs.is_back(known):
                    self._save(suspicion, conclusion, entry, symptom, known, cause)
                else:
                    finding = self._add_example(entry, known)
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
        # The first two outcomes take little time. A duplicate says nothing about other bugs. A bug without deciding
        # experiments is met again and again.
        neutral = (SuspicionOutcome.IN_BOTH, SuspicionOutcome.NOT_COMPARED)
        return None if outcome in neutral or (finding and finding.decided_by) else is_new and not is_alike

    def _find_origin(self, case: Case) -> str:
        models = self.state.options.models
        near = models.describe(case) if models is not None else ""
        return f"found in {near}, then shrunk" if near else ""

    def _add_example(self, entry: Entry, bug: Bug) -> KnownFinding:
        """Save a minimal case of a listed bug as a further example, which explains later failures."""
        path = self.state.options.out / "internal" / entry.file_name
        self._add_known(entry, path)
        corpus_entry.write(entry, path)
        finding = self.state.known_bugs.add_entry(entry, bug, path=path)
        self.state.suspicions.reconsider(finding)
        return finding

    def _save(
        self,
        suspicion: Suspicion,
        conclusion: Conclusion,
        entry: Entry,
        symptom: Symptom,
        back: Bug | None,
        cause: RootCause | None,
    ) -> None:
        state, case, shown = self.state, conclusion.case, conclusion.shown
        is_public, is_eager = conclusion.outcome is SuspicionOutcome.FINDING, shown.verdict is Verdict.EAGER_SUSPECT
        path = (state.options.corpus if is_public else state.options.out / "internal") / entry.file_name
        # The row is written first. After a kill, `load_findings` writes the file from it.
        state.results.add_finding(suspicion.id, _row(entry, path, "new" if is_public else "internal", 1, shown))
        # It is known before its file: if that can't be written, other threads still finish their investigations.
        causes, decided_by = ((cause.key,), cause.decided_by) if cause else ((), None)
        finding = state.known_bugs.add(KnownFinding(case.id, symptom, causes, decided_by, entry))
        corpus_entry.write(entry, path)
        if is_public and state.share is not None:
            state.share.publish(FINDINGS, entry)
        state.suspicions.reconsider(finding)
        of_eager = is_eager and state.options.is_of_user
        counts = is_public and not of_eager
        self.new += counts
        state.schedule.has_shown = True
        state.bus.emit(
            FindingSaved(
                case=case.id,
                verdict=shown.verdict,
                result=replace(shown, coverage=()),
                ops=len(case.ops),
                n_earlier=sum(earlier.times for earlier in case.before),
                path=str(path),
                internal=not is_public,
                source=state.known_bugs.emit(case, shown),
                where=describe_where(case, shown.where),
                ledger=f"regression: fixed in {back.status.about} and back: {back.title}" if back else "",
                seen=entry.seen,
                of_eager=of_eager,
            )
        )
        if counts and state.options.fail_fast:
            state.stop.stop(StopReason.FAIL_FAST)


def write_fault(case: Case, text: str, directory: Path) -> Path:
    """Save a case whose check failed because of a fault in attnfuzz, with a log of `text`. Returns the case's file."""
    entry = Entry(case=case)
    path = corpus_entry.write(entry, directory / entry.file_name)
    path.with_name(path.name.replace(".case.yaml", ".log")).write_text(f"{text}\n", encoding="utf-8")
    return path


def record_origin(shown: SubjectResult, hello: Hello) -> Found:
    """How a case was found, for its file: now, by the worker of `hello`."""
    return Found(
        verdict=shown.verdict.value,
        subject=shown.subject,
        fired=tuple(name for name in shown.applied_rewrites if name not in shown.right_rewrites),
        torch=hello.torch,
        device=hello.device,
        message=describe(shown),
        numbers=shown.numbers,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        failure=encode(shown.failure) or {},
        rewrites=tuple(encode(rewrite) for rewrite in shown.wrong_rewrites),
    )


def _entry(conclusion: Conclusion, hello: Hello, seen: Mapping[str, str], note: str) -> Entry:
    # Later failures come from the cheapest subject, so the entry gets the rewrites of that subject.
    of_rewrites = ("applied_rewrites", "wrong_rewrites", "right_rewrites")
    seen_best = replace(conclusion.shown, **{name: getattr(conclusion.cheapest_result, name) for name in of_rewrites})
    return Entry(case=conclusion.case, note=note, found=record_origin(seen_best, hello), seen=seen)


def _row(entry: Entry, path: Path, kind: str, count: int, result: SubjectResult) -> FindingRow:
    now = time.time()
    return FindingRow(entry, str(path), result, kind, count, now, now)
