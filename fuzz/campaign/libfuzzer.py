"""`--engine atheris`: a thread whose cases libFuzzer draws and judges in a process of its own.

The thread's ordinary worker shows, shrinks and confirms failures while libFuzzer waits.
"""

from collections.abc import Sequence
from dataclasses import replace

from corpus import casefile
from fuzz.ask.question import Question
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_process import WorkerProcess
from fuzz.campaign.crew import CampaignEvaluator
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.schedule import Job
from fuzz.campaign.worker_thread import WorkerThread

MODULE = "fuzz.libfuzzer"

RECYCLE_HOST_CHECKS = 20_000
"""High, since a new process first replays the corpus. The memory limit usually ends a process sooner."""


class LibFuzzerThread(WorkerThread):
    """Judges the cases that libFuzzer draws until the campaign is over."""

    def __init__(self, investigations: InvestigationRunner, number: int) -> None:
        super().__init__(investigations, number)
        options, name, crew = self.state.options, f"atheris-{number}", self.crew
        directory = options.out.absolute() / name
        corpus = directory / "corpus"  # of libFuzzer; each process continues with that of the process before
        if not corpus.exists():
            corpus.mkdir(parents=True)
            for case in options.seeds:
                (corpus / case.id).write_text(casefile.dumps(case), encoding="utf-8")
        log = options.out / "workers" / f"{name}.log"
        config = replace(crew.config, module=MODULE, arguments=("--corpus", str(directory)), log=log)
        host = WorkerProcess(config, PipeTransport(), crew.on_start, crew.on_death)
        crew.case_worker = CampaignEvaluator(host, self.state, number, recycle_checks=RECYCLE_HOST_CHECKS)
        crew.evaluators.append(crew.case_worker)

    def choose(self) -> Sequence[Job]:
        """The next new case that libFuzzer draws, which it can't while a case is being judged."""
        numbers, schedule, host = self.state.numbers, self.state.schedule, self.crew.case_worker
        while not self.crew.jobs and numbers.has_next and not self.state.stop.is_over:
            case = casefile.loads(host.process.draw().case, "libFuzzer's case")
            if self.state.results.is_judged(case.id):
                # A new process first runs the corpus, most of which was judged before.
                self.crew.task = f"case {case.id}"
                host.ask(Question(case, schedule.always))
            elif (index := numbers.take()) is not None:
                return [Job(index, case, schedule.subjects_for(case), case.id)]
        return []
