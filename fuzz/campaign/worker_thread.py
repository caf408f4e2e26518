"""One worker and the thread that drives it: judge cases, and now and then work on a suspicion."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from fuzz.evaluator import Setup, Worker, WorkerFault, request
from fuzz.protocol import Check, Hello, Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from generators.errors import UserError
from generators.program.case import Case

if TYPE_CHECKING:
    from fuzz.campaign.campaign import Campaign

RECYCLE_CHECKS = 2000
"""A worker is replaced after so many checks, whatever its memory."""

_RECYCLE_SHARE = 0.5
"""... and when what it keeps between cases is this share of what it had left of the memory limit at first."""

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

    def __init__(self, campaign: "Campaign", number: int, setup: Setup, directory: Path) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.campaign, self.number = campaign, number
        self.fault: BaseException | None = None
        bus = campaign.bus
        self.worker = Worker(
            setup,
            directory / "cache" / f"worker-{number}",
            directory / "workers" / f"worker-{number}.log",
            started=lambda hello: bus.emit(WorkerStarted(number, hello.pid, hello.seconds)),
            died=lambda reason: bus.emit(WorkerDied(number, reason)),
        )
        against = campaign.options.against
        self.rival: Worker | None = None
        """The worker of the interpreter that the campaign holds against its own."""
        if against is not None:
            cache, log = directory / "cache" / f"against-{number}", directory / "workers" / f"against-{number}.log"
            self.rival = Worker(against, cache, log)
        self._next: Job | None = None

    def start_worker(self) -> Hello:
        """Start the worker ahead of the thread, to learn whether it can work."""
        return self.worker.start()

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
        self.worker.kill()
        if self.rival is not None:
            self.rival.kill()

    def close(self) -> None:
        """End the processes."""
        self.worker.close()
        if self.rival is not None:
            self.rival.close()

    def probe(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """Judge a case under one subject, for `investigate`."""
        return self._probe(self.worker, case, subject, fresh=fresh)

    def probe_against(self, case: Case, subject: str, *, fresh: bool = False) -> SubjectResult | None:
        """Judge a case under one subject in the interpreter of `--against`."""
        assert self.rival is not None
        return self._probe(self.rival, case, subject, fresh=fresh)

    def _probe(self, worker: Worker, case: Case, subject: str, *, fresh: bool) -> SubjectResult | None:
        if fresh:
            worker.close()
        # What fresh workers say may be kept as a finding.
        result = self._received(case, request(case, (subject,), located=fresh), worker)
        one = result.results[0] if result.rejected is None and result.results else None
        verdict = one.verdict if one else Verdict.REJECTED
        self.campaign.bus.emit(
            ProbeJudged(
                case.id, self.number, subject, verdict, result.seconds, result.torch_seconds, result.oracle_seconds
            )
        )
        self._recycle(worker, result)
        return one

    def _received(self, case: Case, check: Check, worker: Worker) -> Result:
        worker.send(check)
        return self._answer(case, worker.receive)

    def _answer(self, case: Case, receive: Callable[[], Result]) -> Result:
        """The answer to the check of `case` that was sent; where the worker has a fault of ours, that it can't be judged."""
        try:
            return self._checked(receive())
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
        self.worker.send(job.check)
        # The next case is made while the worker is busy with this one.
        if not self.campaign.over():
            self._next = self._prepare()
        result = self._completed(job.case, job.check, self._answer(job.case, self.worker.receive))
        self._judged(job, result)
        self._recycle(self.worker, result)
        return True

    def _completed(self, case: Case, check: Check, result: Result) -> Result:
        """A result with all verdicts: a lost process takes those it had reached with it, so they are asked for again."""
        lost = result.results[0].subject if len(result.results) == 1 else ""
        if lost not in check.subjects[1:]:
            return result
        before = check.subjects[: check.subjects.index(lost)]
        earlier = self._received(case, replace(check, subjects=before), self.worker)
        return replace(result, results=(*earlier.results, *result.results))

    def _prepare(self) -> Job | None:
        index = self.campaign.indices.take()
        if index is None:
            return None
        chosen = self.campaign.search.next(index)
        subjects = self.campaign.schedule.subjects_for(chosen.case, aimed=chosen.aimed)
        return Job(index, chosen.case, request(chosen.case, subjects))

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

    def _recycle(self, worker: Worker, result: Result, checks: int = RECYCLE_CHECKS) -> None:
        """Replace the worker before its memory grows past the limit."""
        left = max(0.0, worker.setup.memory_mib - worker.first_mib)
        large = result.rss_mib > worker.first_mib + _RECYCLE_SHARE * left
        if worker.checks >= checks or (large and worker.checks > 1):
            self.campaign.bus.emit(WorkerRecycled(self.number, worker.checks, result.rss_mib))
            worker.close()
