"""The thread that drives a worker, from its start to its end: it judges cases and investigates suspicions."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from fuzz import events
from fuzz.ask.evaluator import Evaluator, Judged
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import Stopped, WorkerFault, WorkerLost, WorkerProcess
from fuzz.campaign.investigation import CONFIRMATIONS
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.options import require_space
from fuzz.campaign.run_case import choose_case, choose_near_cases, record_case
from fuzz.campaign.saved_findings import write_fault
from fuzz.campaign.schedule import Job
from fuzz.protocol import Hello, Result, SubjectResult
from fuzz.protocol.failures import ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.versions import public_version
from generators.program.case import Case

_IDLE_SECONDS = 0.1
_MOST_LOSSES = 3
"""A case is given up after losing this many workers with their machines, since the case may be the reason."""


class WorkerThread(threading.Thread):
    """Judges cases until the campaign is over."""

    def __init__(self, investigations: InvestigationRunner, number: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.investigations, self.state, self.number = investigations, investigations.state, number
        self.fault: Exception | None = None  # the exception that ended the thread early
        options = self.state.options
        self.evaluator = Evaluator(self._open_worker("worker", options.worker_config, self._on_start, self._on_death))
        self.evaluators = [self.evaluator]
        self._baseline: Evaluator | None = None
        if options.against is not None:
            self._baseline = Evaluator(self._open_worker("against", options.against))
            self.evaluators.append(self._baseline)
        self._helpers: list[Evaluator] = []  # further processes, for cases that are judged at once
        # A worker that is no fork ends with the thread that started it, so these threads stay.
        self._pool = ThreadPoolExecutor(CONFIRMATIONS, thread_name_prefix=f"probes of worker {number}")
        self.earlier: Sequence[Judged] = ()  # judged before the last case by the same process
        self._jobs: list[Job] = []  # the current case and the next cases
        self.task = ""  # the work of the worker in words: a case, or a step of an investigation

    def _open_worker(self, role: str, config: WorkerConfig, *listeners: Callable[..., None]) -> WorkerProcess:
        options, name = self.state.options, f"{role}-{self.number}"
        if options.open_remote is not None:
            return options.open_remote(config, *listeners)
        cache, log = options.out / "cache" / name, options.out / "workers" / f"{name}.log"
        config = replace(options.bind(config, self.number), cache=cache, log=log)
        refused = events.ForkRefused(self.number)
        return WorkerProcess(config, PipeTransport(lambda: self.state.bus.emit(refused)), *listeners)

    @property
    def process(self) -> WorkerProcess:
        """The process that was asked last."""
        return max((evaluator.process for evaluator in self.evaluators), key=lambda process: process.stage_began)

    def start_worker(self) -> Hello:
        """Start the worker unless it runs, which shows whether it can work."""
        return self.evaluator.hello

    def start_baseline(self) -> str:
        """Start the worker of `--against` and return its torch version; "" without such a worker."""
        return public_version(self._baseline.hello.torch) if self._baseline is not None else ""

    def _on_start(self, hello: Hello) -> None:
        self.state.bus.emit(events.WorkerStarted(worker=self.number, pid=hello.pid))

    def _on_death(self, reason: str | ProcessLost) -> None:
        text, how = (describe_failure(reason), reason.how) if isinstance(reason, ProcessLost) else (reason, None)
        self.state.bus.emit(events.WorkerDied(worker=self.number, reason=text, how=how))

    def run(self) -> None:
        stop = self.state.stop
        try:
            while not stop.is_over and self._work():
                pass
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the main thread raises it again
            self.fault = stop.fail(error, self.state.options.out)
        finally:
            self.close()

    def _work(self) -> bool:
        """Judge a case or investigate a suspicion; False when nothing is left to do."""
        numbers, investigations = self.state.numbers, self.investigations
        is_placed = all(evaluator.process.is_placed() for evaluator in self.evaluators)
        taken = investigations.take(cases_left=numbers.has_next) if is_placed else None
        try:
            if taken is not None:
                investigations.work_on(*taken, worker=self)
                return True
            if is_placed and self.judge_case():
                return True
        except WorkerLost:
            return True  # its case or suspicion is judged again
        # Other workers get the jobs of a worker without a machine.
        numbers.returned += self._jobs
        self._jobs.clear()
        if investigations.is_drained and not numbers.has_next:
            return False
        time.sleep(_IDLE_SECONDS)
        return True

    def judge_case(self) -> bool:
        """Judge and record the next case; False if none is left. Raises as `receive`."""
        if (job := self.take_job()) is None:
            return False
        record_case(self.state, job, self.judge(job), worker=self.number, earlier=self.earlier)
        return True

    def kill(self) -> None:
        """End the processes at once. Called from other threads."""
        for evaluator in (*self.evaluators, *self._helpers):
            evaluator.process.kill()

    def close(self) -> None:
        self.end_helpers()
        self._pool.shutdown()
        for evaluator in self.evaluators:
            evaluator.close()

    def probe(
        self, probes: Sequence[tuple[Case, str]], *, fresh: bool, baseline: bool
    ) -> Sequence[SubjectResult | None]:
        """Judge cases, each under its subject, at once: in this worker and in helpers with its configuration.

        baseline: in the interpreter of `--against`, which judges one case at a time
        """
        for number in range(len(self._helpers) + 1, len(probes)):
            self._helpers.append(Evaluator(self._open_worker(f"helper-{number}", self.state.options.worker_config)))
        first = self._baseline if baseline else self.evaluator
        assert first is not None
        asked = zip((first, *self._helpers), probes, strict=False)
        futures = [
            self._pool.submit(self._probe, evaluator, case, subject, fresh=fresh)
            for evaluator, (case, subject) in asked
        ]
        wait(futures)
        return [future.result() for future in futures]

    def _probe(self, evaluator: Evaluator, case: Case, subject: str, *, fresh: bool) -> SubjectResult | None:
        result = self.receive(case, lambda: evaluator.evaluate(case, (subject,), fresh=fresh))
        return result.results[0] if result.rejected is None and result.results else None

    def end_helpers(self) -> None:
        """End the processes that `probe` started."""
        for helper in self._helpers:
            helper.close()
        self._helpers.clear()

    def receive(self, case: Case, ask: Callable[[], Result]) -> Result:
        """The result of `ask` for `case`. If the worker reports a fault of attnfuzz, the case counts as not judged.

        Raises `Stopped`, `DiskFull` and `WorkerLost`.
        """
        out = self.state.options.out
        try:
            result = ask()
        except WorkerFault as fault:
            path = write_fault(case, str(fault), out / "faults")
            self.state.bus.emit(events.WorkerFailed(worker=self.number, case=case.id, text=str(fault), path=str(path)))
            return Result(0, "a fault of attnfuzz", ())
        except WorkerLost as lost:
            self.state.losses[case.id] += 1
            if self.state.losses[case.id] < _MOST_LOSSES:
                raise
            return Result(0, f"lost {_MOST_LOSSES} workers with their machines: {lost}", ())
        require_space(out)
        return result

    def take_job(self) -> Job | None:
        """The case to judge next; None when the budget of cases is spent. It stays the next until it is judged."""
        if not self._jobs:
            self._choose_jobs()
        return self._jobs[0] if self._jobs else None

    def _choose_jobs(self) -> None:
        if (job := choose_case(self.state)) is not None:
            self._jobs += [job, *choose_near_cases(self.state, job)]

    def judge(self, job: Job) -> Result:
        """The verdicts on a case. The next case is chosen while the worker is busy. Raises as `receive`."""
        self.task = f"case {job.index}"
        self.evaluator.recycle()
        self.evaluator.submit(job.check, job.case)
        if len(self._jobs) == 1 and not self.state.stop.is_over:
            self._choose_jobs()
        result = self.receive(job.case, self.evaluator.collect)
        self.earlier = self.evaluator.earlier
        self._jobs.remove(job)
        return result
