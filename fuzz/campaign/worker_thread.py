"""One worker and the thread that drives it: judge cases, and now and then work on a suspicion."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from corpus.entry import Entry
from fuzz import events
from fuzz.campaign.finding_store import write_fault
from fuzz.campaign.investigations import Investigations
from fuzz.campaign.share import QUEUE
from fuzz.evaluator import Evaluator, Stopped, WorkerFault, build_check, public_version
from fuzz.protocol import Check, Hello, Result, SubjectResult, Verdict
from fuzz.protocol.render import describe
from fuzz.worker_process import WorkerProcess
from generators.program.case import Case
from generators.program.type_check import LARGE, count_elements
from generators.sampling.choices import Choices
from generators.sampling.drawn_settings import DRAWN, draw_settings

_IDLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """A case on its way to be judged. `chosen`: the id of the targeted case it was made of, which is judged once."""

    index: int
    case: Case
    check: Check
    chosen: str = ""


class WorkerThread(threading.Thread):
    """Judges cases until the campaign is over. `fault` is the exception that ended it early, if one did."""

    def __init__(self, investigations: Investigations, number: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.investigations, self.shared, self.number = investigations, investigations.shared, number
        self.fault: Exception | None = None
        options, out = self.shared.options, self.shared.options.out
        cache, log = out / "cache" / f"worker-{number}", out / "workers" / f"worker-{number}.log"
        worker = WorkerProcess(options.bind(options.setup, number), cache, log, self._on_start, self._on_death)
        self.evaluator = Evaluator(worker)
        self.evaluators = [self.evaluator]
        """All of them, to be ended with the thread."""
        self._baseline: Evaluator | None = None
        if options.against is not None:
            cache, log = out / "cache" / f"against-{number}", out / "workers" / f"against-{number}.log"
            self._baseline = Evaluator(WorkerProcess(options.bind(options.against, number), cache, log))
            self.evaluators.append(self._baseline)
        self._next: Job | None = None
        self.task = ""
        """What its worker is asked, in words: a case, or the step of an investigation."""

    @property
    def process(self) -> WorkerProcess:
        """The one of its processes that was asked last."""
        return max((evaluator.process for evaluator in self.evaluators), key=lambda process: process.stage_began)

    def start_worker(self) -> Hello:
        """Start the worker, where it does not run, to learn whether it can work."""
        return self.evaluator.hello

    def start_baseline(self) -> str:
        """Start the worker of `--against`; gives its torch version, "" without one."""
        return public_version(self._baseline.hello.torch) if self._baseline is not None else ""

    def _on_start(self, hello: Hello) -> None:
        self.shared.bus.emit(events.WorkerStarted(worker=self.number, pid=hello.pid, seconds=hello.seconds))

    def _on_death(self, reason: str) -> None:
        self.shared.bus.emit(events.WorkerDied(worker=self.number, reason=reason))

    def run(self) -> None:
        """The thread."""
        control, investigations = self.shared.control, self.investigations
        try:
            while not control.is_over:
                taken = investigations.take(cases_left=self.shared.numbers.has_next)
                if taken is not None:
                    investigations.work_on(*taken, worker=self)
                elif not self.judge_next():
                    if investigations.is_drained:
                        break
                    time.sleep(_IDLE_SECONDS)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the main thread raises it again
            self.fault = control.fail(error, self.shared.options.out)
        finally:
            self.close()

    def kill(self) -> None:
        """End the processes at once; called from other threads."""
        for evaluator in self.evaluators:
            evaluator.kill()

    def close(self) -> None:
        """End the processes."""
        for evaluator in self.evaluators:
            evaluator.close()

    def probe(self, case: Case, subject: str, *, fresh: int = 0, baseline: bool = False) -> SubjectResult | None:
        """Judge a case under one subject, for `investigate`; `baseline`: in the interpreter of `--against`."""
        evaluator = self._baseline if baseline else self.evaluator
        assert evaluator is not None
        self.task = "confirming" if fresh else ""
        result = self.receive(case, lambda: evaluator.evaluate(case, (subject,), fresh=fresh))
        one = result.results[0] if result.rejected is None and result.results else None
        self.shared.bus.emit(
            events.ProbeJudged(
                case=case.id,
                worker=self.number,
                subject=subject,
                verdict=one.verdict if one else Verdict.REJECTED,
                seconds=result.seconds,
                torch_seconds=result.torch_seconds,
                oracle_seconds=result.oracle_seconds,
            )
        )
        return one

    def receive(self, case: Case, ask: Callable[[], Result]) -> Result:
        """What `ask` gives for `case`; where the worker has a fault of ours, that it can't be judged. Raises `Stopped`
        and `DiskFull`."""
        out = self.shared.options.out
        try:
            result = ask()
        except WorkerFault as fault:
            path = write_fault(case, str(fault), out / "faults")
            self.shared.bus.emit(events.WorkerFailed(worker=self.number, case=case.id, text=str(fault), path=str(path)))
            return Result(0, "a fault of attnfuzz", ())
        self.shared.control.require_space(out)
        return result

    def judge_next(self) -> bool:
        """Judge one case; False when the budget of cases is spent."""
        job = self._next or self._prepare()
        self._next = None
        if job is None:
            return False
        self.task = f"case {job.index}"
        self.evaluator.submit(job.check)
        # The next case is made while the worker is busy with this one.
        if not self.shared.control.is_over:
            self._next = self._prepare()
        self.record(job, self.receive(job.case, self.evaluator.collect))
        self.evaluator.recycle()
        return True

    def _prepare(self) -> Job | None:
        index = self.shared.numbers.take(self.number)
        if index is None:
            return None
        shared = self.shared
        chosen = shared.search.choose(index)
        c, share = Choices(f"{shared.options.seed}:{index}:settings"), 1.0 if shared.schedule.needs_settings else DRAWN
        case = draw_settings(chosen.case, c, shared.settings, share)
        subjects = shared.schedule.subjects_for(case, targeted=chosen.is_targeted)
        return Job(index, case, build_check(case, subjects), chosen.case.id if chosen.is_targeted else "")

    def record(self, job: Job, result: Result) -> None:
        """Write down the verdicts on a case; failures that nothing explains become suspicions."""
        shared, case = self.shared, job.case
        by_subject = {one.subject: one.seconds for one in result.results}
        shared.schedule.add_time(result.seconds, by_subject, large=count_elements(case) >= LARGE)
        unexplained, explained = shared.suspicions.split(case, result.results)
        position = shared.numbers.finish(job.index)
        reached, queued = shared.search.record(case, result)
        raised = shared.results.record_case(
            job.index,
            case,
            position=position,
            unexplained=unexplained,
            explained=[explanation.case_id for _, _, explanation in explained],
            reached=reached,
            queued=queued,
            chosen=job.chosen,
        )
        if queued and shared.share is not None:
            shared.share.publish(QUEUE, Entry(case))
        shared.bus.emit(
            events.CaseJudged(
                index=job.index,
                case=case.id,
                worker=self.number,
                verdicts={one.subject: one.verdict for one in result.results},
                fired=tuple(sorted({name for one in result.results for name in one.fired})),
                rejected=result.rejected,
                seconds=result.seconds,
                torch_seconds=result.torch_seconds,
                rss_mib=result.rss_mib,
                skipped={one.subject: describe(one) for one in result.results if one.verdict is Verdict.SKIPPED},
                oracle_seconds=result.oracle_seconds,
                reached=tuple(sorted({name for one in result.results for name in one.reached})),
            )
        )
        for failing, one, explanation in explained:
            shared.bus.emit(explanation.report(failing.id, one.verdict))
        for suspicion in raised:
            one = suspicion.result
            shared.bus.emit(
                events.SuspicionRaised(
                    suspicion=suspicion.id,
                    case=suspicion.case.id,
                    index=job.index,
                    subject=one.subject,
                    verdict=one.verdict,
                    message=describe(one),
                )
            )
            shared.suspicions.put(suspicion)
