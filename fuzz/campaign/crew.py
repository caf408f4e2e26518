"""The workers of a campaign's thread: its own, that of `--against`, and helpers for cases that are judged at once."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from fuzz import events
from fuzz.ask.evaluator import RECYCLE_CHECKS, Evaluator
from fuzz.ask.question import Asker, ProcessState, Question, no_work
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerFault, WorkerLost, WorkerProcess
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.investigation import CONFIRMATIONS
from fuzz.campaign.options import require_space
from fuzz.campaign.saved_findings import write_fault
from fuzz.campaign.schedule import Job
from fuzz.protocol import Hello, Result
from fuzz.protocol.failures import ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.versions import distinguish_versions

_MOST_LOSSES = 3
"""A case is given up after losing this many workers with their machines, since the case may be the reason."""


class CampaignEvaluator(Evaluator):
    """Asks a worker of a campaign, which goes on if the worker fails. `number`: of its thread."""

    def __init__(
        self, process: WorkerProcess, state: CampaignState, number: int, *, recycle_checks: int = RECYCLE_CHECKS
    ) -> None:
        super().__init__(process, recycle_checks=recycle_checks)
        self._state, self._number = state, number

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        """As `Evaluator.ask`. If the worker reports a fault of attnfuzz, the case counts as not judged.

        Raises `Stopped`, `DiskFull` and `WorkerLost`.
        """
        state, case = self._state, question.case
        try:
            result = super().ask(question, meanwhile)
        except WorkerFault as fault:
            path = write_fault(case, str(fault), state.options.out / "faults")
            state.bus.emit(events.WorkerFailed(worker=self._number, case=case.id, text=str(fault), path=str(path)))
            return Result(0, "a fault of attnfuzz", ())
        except WorkerLost as lost:
            state.losses[case.id] += 1
            if state.losses[case.id] < _MOST_LOSSES:
                raise
            return Result(0, f"lost {_MOST_LOSSES} workers with their machines: {lost}", ())
        require_space(state.options.out)
        return result


class Crew(Asker):
    """The workers of a thread. `choose`: returns the next cases; none if the budget of cases is spent."""

    def __init__(self, state: CampaignState, number: int, choose: Callable[[], Sequence[Job]]) -> None:
        self.state, self.number, self.choose = state, number, choose
        options = state.options
        self.worker = self._hire("worker", options.worker_config, self.on_start, self.on_death)
        self._baseline = self._hire("against", options.against) if options.against is not None else None
        self.evaluators = [self.worker] + ([self._baseline] if self._baseline is not None else [])
        self.case_worker: CampaignEvaluator = self.worker  # of new cases
        self._helpers: list[Evaluator] = []
        # A worker that is no fork ends with the thread that started it, so these threads stay.
        self._pool = ThreadPoolExecutor(CONFIRMATIONS, thread_name_prefix=f"helpers of worker {number}")
        self.jobs = deque[Job]()  # the current case and the next cases
        self.task = ""  # in words: a case, or a step of an investigation

    def _hire(self, role: str, config: WorkerConfig, *listeners: Callable[..., None]) -> CampaignEvaluator:
        options, name = self.state.options, f"{role}-{self.number}"
        if options.open_remote is not None:
            process = options.open_remote(config, *listeners)
        else:
            cache, log = options.out / "cache" / name, options.out / "workers" / f"{name}.log"
            config = replace(options.bind(config, self.number), cache=cache, log=log)
            refused = events.ForkRefused(self.number)
            process = WorkerProcess(config, PipeTransport(lambda: self.state.bus.emit(refused)), *listeners)
        return CampaignEvaluator(process, self.state, self.number)

    def on_start(self, hello: Hello) -> None:
        """Tell that a worker has started."""
        self.state.bus.emit(events.WorkerStarted(worker=self.number, pid=hello.pid))

    def on_death(self, reason: str | ProcessLost) -> None:
        """Tell that a worker has died."""
        text, how = (describe_failure(reason), reason.how) if isinstance(reason, ProcessLost) else (reason, None)
        self.state.bus.emit(events.WorkerDied(worker=self.number, reason=text, how=how))

    @property
    def config(self) -> WorkerConfig:
        return self.worker.config

    @property
    def hello(self) -> Hello:
        return self.worker.hello

    def start_baseline(self, subjects: Collection[str]) -> str:
        """Start the worker of `--against` and return the version in which it differs; "" without such a worker.

        subjects: of the campaign; their runtimes may differ instead of torch
        """
        return (
            distinguish_versions([self._baseline.hello, self.hello], subjects)[0] if self._baseline is not None else ""
        )

    @property
    def process(self) -> WorkerProcess:
        """The process that was asked last."""
        return max((evaluator.process for evaluator in self.evaluators), key=lambda process: process.stage_began)

    def is_placed(self) -> bool:
        """Whether there is a machine for each worker; if not, requests machines."""
        return all(evaluator.process.is_placed() for evaluator in self.evaluators)

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        asker = self._baseline if ProcessState.BASELINE in question.process else self.worker
        assert asker is not None
        return asker.ask(question, meanwhile)

    def ask_all(self, questions: Sequence[Question]) -> list[Result]:
        """The answers to questions that don't depend on each other: the worker and helpers are asked at once."""
        if len(questions) < 2:
            return [self.ask(question) for question in questions]
        for number in range(len(self._helpers) + 1, len(questions)):
            self._helpers.append(self._hire(f"helper-{number}", self.state.options.worker_config))
        askers = (self.worker, *self._helpers)
        futures = [self._pool.submit(asker.ask, question) for asker, question in zip(askers, questions, strict=False)]
        wait(futures)
        return [future.result() for future in futures]

    def choose_ahead(self) -> None:
        """Choose the next case while the worker is busy with the current case."""
        if len(self.jobs) == 1 and not self.state.stop.is_over:
            self.jobs += self.choose()

    def end_helpers(self) -> None:
        """End the processes that `ask_all` started."""
        for helper in self._helpers:
            helper.close()
        self._helpers.clear()

    def kill(self) -> None:
        """End the processes at once. Called from other threads."""
        for evaluator in (*self.evaluators, *self._helpers):
            evaluator.process.kill()

    def close(self) -> None:
        """End the processes."""
        self.end_helpers()
        self._pool.shutdown()
        for evaluator in self.evaluators:
            evaluator.close()
