"""`--engine atheris`: a thread whose cases libFuzzer draws and judges in a process of its own.

The thread's ordinary worker shows, shrinks and confirms failures while libFuzzer waits.
"""

from dataclasses import replace

from corpus import casefile
from fuzz.ask.evaluator import Evaluator, build_check
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_process import WorkerProcess
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.schedule import Job
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.protocol import Check, Hello, Result
from generators.program.case import Case

MODULE = "fuzz.libfuzzer"

RECYCLE_CHECKS = 20_000
"""High, since a new process first replays the corpus. The memory limit usually ends a process sooner."""


class LibFuzzerThread(WorkerThread):
    """Judges the cases that libFuzzer draws until the campaign is over."""

    def __init__(self, investigations: InvestigationRunner, number: int) -> None:
        super().__init__(investigations, number)
        options, name = self.state.options, f"atheris-{number}"
        directory = options.out.absolute() / name
        corpus = directory / "corpus"  # of libFuzzer; each process continues with that of the process before
        if not corpus.exists():
            corpus.mkdir(parents=True)
            for case in options.seeds:
                (corpus / case.id).write_text(casefile.dumps(case), encoding="utf-8")
        log = options.out / "workers" / f"{name}.log"
        config = replace(self.evaluator.config, module=MODULE, arguments=("--corpus", str(directory)), log=log)
        self.host = WorkerProcess(config, PipeTransport(), self._on_start, self._on_death)
        self.host_evaluator = Evaluator(self.host, recycle_checks=RECYCLE_CHECKS)
        self.evaluators.append(self.host_evaluator)

    def start_worker(self) -> Hello:
        """Start libFuzzer's process, which shows whether it can work."""
        return self.host.start()

    def take_job(self) -> Job | None:
        """The next new case that libFuzzer draws; None when the budget of cases is spent or the campaign is over."""
        numbers, schedule = self.state.numbers, self.state.schedule
        self.host_evaluator.recycle()
        while numbers.has_next and not self.state.stop.is_over:
            case = casefile.loads(self.host.draw().case, "libFuzzer's case")
            if self.state.results.is_judged(case.id):
                # A new process first runs the corpus, most of which was judged before.
                self._ask(case, build_check(case, schedule.always))
            elif (index := numbers.take()) is not None:
                return Job(index, case, build_check(case, schedule.subjects_for(case)), case.id)
        return None

    def judge(self, job: Job) -> Result:
        """The verdicts of libFuzzer's process on a case. Raises as `receive`."""
        return self._ask(job.case, job.check)

    def _ask(self, case: Case, check: Check) -> Result:
        self.task = f"case {case.id}"
        self.host_evaluator.submit(check, case)
        result = self.receive(case, self.host_evaluator.collect)
        self.earlier = self.host_evaluator.earlier
        return result
