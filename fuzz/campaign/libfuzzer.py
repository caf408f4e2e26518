"""`--engine atheris`: a thread whose cases libFuzzer draws and judges in a process of its own.

The thread's ordinary worker shows, shrinks and confirms failures while libFuzzer waits.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from corpus import casefile
from fuzz.campaign.investigation_runner import InvestigationRunner
from fuzz.campaign.schedule import Job
from fuzz.campaign.worker_thread import WorkerThread
from fuzz.evaluator import Evaluator, build_check
from fuzz.protocol import Drawn, Hello
from fuzz.protocol.failures import ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.worker_config import WorkerConfig
from fuzz.worker_process import WorkerProcess
from generators.program.case import Case
from generators.sampling.choices import Choices

MODULE = "fuzz.libfuzzer.host"

DRAW_SECONDS = 60.0
"""How long libFuzzer may take to draw a case: many times what it needs."""

RECYCLE_CHECKS = 20_000
"""High, since a new process first runs the whole corpus. Its memory limit is reached earlier."""

_SEEDS = 2**31 - 1


class Host(WorkerProcess):
    """The process in which libFuzzer runs. `draw` gives a case; a check sent next must judge that case.

    libFuzzer's corpus is `directory / "corpus"`, with which the next process continues. `seed`: a text that differs
    between the processes of a campaign; `cases`: written into an empty corpus; `others`: as for `WorkerProcess`.
    """

    repeats = 0

    def __init__(self, config: WorkerConfig, directory: Path, seed: str, cases: tuple[Case, ...], *others: Any) -> None:
        super().__init__(replace(config, module=MODULE), *others)
        self.directory = directory.absolute()
        self._seed, self._starts = seed, 0
        self._cases = cases

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when it can't work here."""
        if self.hello is None:
            self._starts += 1
            corpus = self.directory / "corpus"
            if not corpus.exists():
                corpus.mkdir(parents=True)
                for case in self._cases:
                    (corpus / case.id).write_text(casefile.dumps(case), encoding="utf-8")
            # Not 0, for which libFuzzer draws one.
            seed = 1 + Choices(f"{self._seed}:{self._starts}").below(_SEEDS)
            self.config = replace(self.config, arguments=("--corpus", str(self.directory), "--seed", str(seed)))
        return super().start()

    def draw(self) -> Drawn:
        """The next case of libFuzzer. Raises as `start` does, and `WorkerFault`."""
        while True:
            self.start()
            self._begin("drawing")
            while not isinstance(message := self.read(DRAW_SECONDS), Drawn | ProcessLost):
                pass
            if isinstance(message, Drawn):
                return message
            self.count_failure(f"it ended before it gave a case: {describe_failure(message)}")


class LibFuzzerThread(WorkerThread):
    """Judges the cases libFuzzer draws until the campaign is over."""

    def __init__(self, investigations: InvestigationRunner, number: int) -> None:
        super().__init__(investigations, number)
        options, out = self.state.options, self.state.options.out
        self.host = Host(
            options.bind(options.worker_config, number),
            out / f"atheris-{number}",
            f"{options.seed}:{number}:{self.state.results.position()[0]}",
            options.seeds,
            out / "cache" / f"worker-{number}",
            out / "workers" / f"atheris-{number}.log",
            self._on_start,
            self._on_death,
        )
        # A new process would first run the whole corpus again.
        self.host_evaluator = Evaluator(self.host, recycle_checks=RECYCLE_CHECKS)
        self.evaluators.append(self.host_evaluator)

    def start_worker(self) -> Hello:
        """Start libFuzzer's process ahead of the thread, to learn whether it can work."""
        return self.host.start()

    def judge_next(self) -> bool:
        """Judge one case; False when the budget of cases is spent."""
        state = self.state
        if not state.numbers.has_next:
            return False
        case = casefile.loads(self.host.draw().case, "libFuzzer's case")
        is_new = not state.results.is_judged(case.id)
        # A new process runs what libFuzzer kept, of which most was judged before.
        check = build_check(case, state.schedule.subjects_for(case) if is_new else state.schedule.always)
        self.task = f"case {case.id}"
        self.host_evaluator.submit(check)
        result = self.receive(case, self.host_evaluator.collect)
        if is_new:
            index = state.numbers.take()
            if index is None:
                return False
            self.record(Job(index, case, check, case.id), result)
            self.host_evaluator.recycle()
        return True
