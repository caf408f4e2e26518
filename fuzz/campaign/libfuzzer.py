"""`--engine atheris`: a thread whose cases libFuzzer draws and judges in a process of its own.

The thread's ordinary worker shows, shrinks and confirms failures while libFuzzer waits.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from corpus import casefile
from fuzz.campaign.investigate import Stopped
from fuzz.campaign.investigations import Investigations
from fuzz.campaign.worker_thread import Job, WorkerThread
from fuzz.evaluator import Evaluator, WorkerConfig, build_check
from fuzz.protocol import Drawn, Hello, Result
from fuzz.protocol.failures import ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.worker_process import WorkerProcess
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.choices import Choices

MODULE = "fuzz.libfuzzer.host"

DRAW_SECONDS = 60.0
"""How long libFuzzer may take to draw a case: many times what it needs."""

RECYCLE_CHECKS = 20_000
"""High, since a new process first runs the whole corpus. Its memory limit is reached earlier."""

_ATTEMPTS = 3
_SEEDS = 2**31 - 1


class Host(WorkerProcess):
    """The process in which libFuzzer runs. `draw` gives a case; a check sent next must judge that case.

    libFuzzer's corpus is `directory / "corpus"`, with which the next process continues. `seed`: a text that differs
    between the processes of a campaign; `cases`: written into an empty corpus.
    """

    def __init__(
        self,
        config: WorkerConfig,
        directory: Path,
        seed: str,
        cases: tuple[Case, ...],
        cache: Path,
        log: Path,
        on_start: Callable[[Hello], None],
        on_death: Callable[[str], None],
    ) -> None:
        super().__init__(replace(config, module=MODULE), cache, log, on_start, on_death)
        self.directory = directory.absolute()
        self._seed, self._starts = seed, 0
        self._cases = cases

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when it can't work here."""
        if self.hello is None:
            self._starts += 1
            self._write_seeds()
            # Not 0, for which libFuzzer draws one.
            seed = 1 + Choices(f"{self._seed}:{self._starts}").below(_SEEDS)
            self.config = replace(self.config, arguments=("--corpus", str(self.directory), "--seed", str(seed)))
        return super().start()

    def _write_seeds(self) -> None:
        corpus = self.directory / "corpus"
        if corpus.exists():
            return
        corpus.mkdir(parents=True)
        for case in self._cases:
            data = casefile.dumps(case).encode()
            # Under the name that libFuzzer would give it.
            (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

    def draw(self) -> Drawn | None:
        """The next case of libFuzzer; None if the process ended instead. Raises `WorkerFault`."""
        self.start()
        self._begin("drawing")
        message = self.read(DRAW_SECONDS)
        while not isinstance(message, Drawn | ProcessLost):
            message = self.read(DRAW_SECONDS)
        if isinstance(message, Drawn):
            return message
        self._discard(f"between two cases: {describe_failure(message)}")
        return None


class LibFuzzerThread(WorkerThread):
    """Judges the cases libFuzzer draws until the campaign is over."""

    def __init__(self, investigations: Investigations, number: int) -> None:
        super().__init__(investigations, number)
        options, out = self.shared.options, self.shared.options.out
        self.host = Host(
            options.setup,
            out / f"atheris-{number}",
            f"{options.seed}:{number}:{self.shared.results.position()[0]}",
            options.seeds,
            out / "cache" / f"worker-{number}",
            out / "workers" / f"atheris-{number}.log",
            on_start=self._on_start,
            on_death=self._on_death,
        )
        # A new process would first run the whole corpus again.
        self.host_evaluator = Evaluator(self.host, recycle_checks=RECYCLE_CHECKS)
        self.evaluators.append(self.host_evaluator)

    def start_worker(self) -> Hello:
        """Start libFuzzer's process ahead of the thread, to learn whether it can work."""
        return self.host.start()

    def judge_next(self) -> bool:
        """Judge one case; False when the budget of cases is spent."""
        shared = self.shared
        if not shared.numbers.has_next:
            return False
        drawn = self._draw()
        case = casefile.loads(drawn.case, "libFuzzer's case")
        check = build_check(case, shared.schedule.always if drawn.again else shared.schedule.subjects_for(case))
        self.host_evaluator.submit(check)
        result = self.receive(case, self.host_evaluator.collect)
        if not drawn.again or self._is_new_failure(case, result):
            index = shared.numbers.take()
            if index is None:
                return False
            self.record(Job(index, case, check), result)
        if not drawn.again:
            self.host_evaluator.recycle()
        return True

    def _is_new_failure(self, case: Case, result: Result) -> bool:
        """Whether a case of an earlier process fails and has raised no suspicion: a kill may come after libFuzzer wrote
        the case and before the store did."""
        unexplained, _ = self.shared.suspicions.split((case,), result.results)
        return bool(unexplained) and not self.shared.results.has_raised(case.id)

    def _draw(self) -> Drawn:
        for _ in range(_ATTEMPTS):
            drawn = self.host.draw()
            if self.shared.control.is_killed:
                raise Stopped
            if drawn is not None:
                return drawn
        raise UserError(
            f"libFuzzer's process ends before it gives a case, {_ATTEMPTS} times in a row; see {self.host.log}"
        )
