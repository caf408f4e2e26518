"""One worker and the thread that drives it: judge cases, and now and then work on a suspicion."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.campaign.events import (
    CaseJudged,
    Duplicate,
    ProbeJudged,
    SuspicionRaised,
    WorkerDied,
    WorkerFailed,
    WorkerRecycled,
    WorkerStarted,
)
from fuzz.campaign.finding_store import write_fault
from fuzz.campaign.investigate import Stopped
from fuzz.evaluator import RECYCLE_CHECKS, Evaluator, WorkerConfig, WorkerFault, build_check
from fuzz.protocol import Check, Hello, Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.worker_process import WorkerProcess
from generators.errors import UserError
from generators.program.case import Case

if TYPE_CHECKING:
    from fuzz.campaign.campaign import Campaign

_IDLE_SECONDS = 0.1
_NO_SPACE = "No space left on device"


@dataclass(frozen=True, slots=True)
class Job:
    """A case on its way to be judged."""

    index: int
    case: Case
    check: Check


class Slot(threading.Thread):
    """Judges cases until the campaign is over. `fault` is the exception that ended it early, if one did."""

    def __init__(self, campaign: "Campaign", number: int, config: WorkerConfig, directory: Path) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.campaign, self.number = campaign, number
        self.fault: BaseException | None = None
        self.evaluator = self._make_evaluator(
            WorkerProcess(
                config,
                directory / "cache" / f"worker-{number}",
                directory / "workers" / f"worker-{number}.log",
                self._on_start,
                self._on_death,
            )
        )
        against = campaign.options.against
        self.rival: Evaluator | None = None
        """Asks the interpreter that the campaign holds against its own."""
        if against is not None:
            cache, log = directory / "cache" / f"against-{number}", directory / "workers" / f"against-{number}.log"
            self.rival = self._make_evaluator(WorkerProcess(against, cache, log))
        self._next: Job | None = None

    def start_worker(self) -> Hello:
        """Start the worker ahead of the thread, to learn whether it can work."""
        return self.evaluator.hello

    def _make_evaluator(self, process: WorkerProcess, recycle_checks: int = RECYCLE_CHECKS) -> Evaluator:
        def on_recycle(checks: int, rss_mib: float) -> None:
            self.campaign.bus.emit(WorkerRecycled(self.number, checks, rss_mib))

        return Evaluator(process, recycle_checks=recycle_checks, on_recycle=on_recycle)

    def _on_start(self, hello: Hello) -> None:
        self.campaign.bus.emit(WorkerStarted(self.number, hello.pid, hello.seconds))

    def _on_death(self, reason: str) -> None:
        self.campaign.bus.emit(WorkerDied(self.number, reason))

    def run(self) -> None:
        """The thread."""
        try:
            while not self.campaign.over():
                taken = self.campaign.take_suspicion()
                if taken is not None:
                    self.campaign.work_on(*taken, slot=self)
                elif not self._judge_next():
                    if self.campaign.drained():
                        break
                    time.sleep(_IDLE_SECONDS)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self.fault = error
            self.campaign.stop("fault")
        finally:
            self.close()

    def kill(self) -> None:
        """End the processes at once; called from other threads."""
        self.evaluator.kill()
        if self.rival is not None:
            self.rival.kill()

    def close(self) -> None:
        """End the processes."""
        self.evaluator.close()
        if self.rival is not None:
            self.rival.close()

    def probe(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """Judge a case under one subject, for `investigate`."""
        return self._probe(self.evaluator, case, subject, fresh=fresh)

    def probe_against(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """Judge a case under one subject in the interpreter of `--against`."""
        assert self.rival is not None
        return self._probe(self.rival, case, subject, fresh=fresh)

    def _probe(self, evaluator: Evaluator, case: Case, subject: str, *, fresh: bool) -> SubjectResult | None:
        # What fresh workers say may be kept as a finding.
        result = self._answer(case, lambda: evaluator.evaluate(case, (subject,), with_error_map=fresh, fresh=fresh))
        one = result.results[0] if result.rejected is None and result.results else None
        verdict = one.verdict if one else Verdict.REJECTED
        self.campaign.bus.emit(
            ProbeJudged(
                case.id, self.number, subject, verdict, result.seconds, result.torch_seconds, result.oracle_seconds
            )
        )
        return one

    def _answer(self, case: Case, ask: Callable[[], Result]) -> Result:
        """What `ask` gives for `case`; where the worker has a fault of ours, that it can't be judged."""
        try:
            return self._checked(ask())
        except WorkerFault as fault:
            path = write_fault(case, str(fault), self.campaign.out / "faults")
            self.campaign.bus.emit(WorkerFailed(self.number, case.id, str(fault), str(path)))
            return Result(0, "a fault of attnfuzz", ())

    def _checked(self, result: Result) -> Result:
        if self.campaign.killed:
            # The worker was ended with the campaign; what looks like its death accuses nobody.
            raise Stopped
        texts = [result.rejected or "", *(describe(one) for one in result.results)]
        if any(_NO_SPACE in text for text in texts):
            raise UserError(f"{self.campaign.out}: {_NO_SPACE.lower()}; all findings so far are saved")
        return result

    def _judge_next(self) -> bool:
        """Judge one case; False when the budget of cases is spent."""
        job = self._next or self._prepare()
        self._next = None
        if job is None:
            return False
        self.evaluator.submit(job.check)
        # The next case is made while the worker is busy with this one.
        if not self.campaign.over():
            self._next = self._prepare()
        self._judged(job, self._answer(job.case, self.evaluator.collect))
        self.evaluator.recycle()
        return True

    def _prepare(self) -> Job | None:
        index = self.campaign.indices.take()
        if index is None:
            return None
        chosen = self.campaign.search.next(index)
        subjects = self.campaign.schedule.subjects_for(chosen.case, aimed=chosen.aimed)
        return Job(index, chosen.case, build_check(chosen.case, subjects))

    def _judged(self, job: Job, result: Result) -> None:
        campaign = self.campaign
        by_subject = {one.subject: one.seconds for one in result.results}
        campaign.schedule.account(result.seconds, by_subject)
        suspect, explained = campaign.desk.sort(job.case, result.results)
        position = campaign.indices.judged(job.index)
        reached, queued = campaign.search.judged(job.case, result)
        raised = campaign.results.judged(
            job.index, job.case, result, position, suspect, [e.case_id for _, e in explained], reached, queued=queued
        )
        campaign.bus.emit(
            CaseJudged(
                job.index,
                job.case.id,
                self.number,
                {one.subject: one.verdict for one in result.results},
                tuple(sorted({name for one in result.results for name in one.fired})),
                result.rejected,
                result.seconds,
                result.torch_seconds,
                result.rss_mib,
                {one.subject: describe(one) for one in result.results if one.verdict is Verdict.SKIPPED},
                result.oracle_seconds,
                tuple(sorted({name for one in result.results for name in one.reached})),
            )
        )
        for one, explanation in explained:
            campaign.bus.emit(Duplicate(job.case.id, one.verdict, explanation.case_id, explanation.known))
        for suspicion in raised:
            one = suspicion.result
            campaign.bus.emit(
                SuspicionRaised(suspicion.id, job.case.id, job.index, one.subject, one.verdict, describe(one))
            )
            campaign.desk.put(suspicion)
