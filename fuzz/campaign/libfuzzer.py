"""`--engine atheris`: a slot whose cases libFuzzer draws, in a process of its own that also judges them.

The slot's ordinary worker shows, shrinks and confirms what that process fails on, while libFuzzer waits.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import casefile
from fuzz.campaign.events import WorkerDied, WorkerStarted
from fuzz.campaign.investigate import Stopped
from fuzz.campaign.worker_thread import Job, Slot
from fuzz.evaluator import Setup, Worker, request
from fuzz.protocol import Drawn, Hello, ProtocolError, Result
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.choices import Choices

if TYPE_CHECKING:
    from fuzz.campaign.campaign import Campaign

MODULE = "fuzz.libfuzzer.host"

DRAW_SECONDS = 60.0
"""How long libFuzzer may take to come up with a case: many times what mutating takes."""

RECYCLE_CHECKS = 20_000
"""A new process first runs all of the corpus: memory replaces it sooner than this."""

_LIVES = 3
_SEEDS = 2**31 - 1
_FAULT = 3
"""The exit code of a process that ends by a fault of ours."""


class Host(Worker):
    """The process libFuzzer runs in. `draw` gives the case it wants judged, `check` then judges it there.

    What libFuzzer keeps lies in `directory / "corpus"`, and the next process goes on from there. `seed`: a text that no
    other process of this campaign begins with; `cases`: what an empty corpus begins with.
    """

    def __init__(
        self,
        setup: Setup,
        directory: Path,
        seed: str,
        cases: tuple[Case, ...],
        cache: Path,
        log: Path,
        started: Callable[[Hello], None],
        died: Callable[[str], None],
    ) -> None:
        super().__init__(replace(setup, module=MODULE), cache, log, started, died)
        self.directory = directory.absolute()
        self._seed, self._starts = seed, 0
        self._cases = cases

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when it can't work here."""
        if self.hello is None:
            self._starts += 1
            self._plant()
            # Not 0, for which libFuzzer draws one.
            seed = 1 + Choices(f"{self._seed}:{self._starts}").below(_SEEDS)
            self.setup = replace(self.setup, arguments=("--corpus", str(self.directory), "--seed", str(seed)))
        return super().start()

    def _plant(self) -> None:
        corpus = self.directory / "corpus"
        if corpus.exists():
            return
        corpus.mkdir(parents=True)
        for case in self._cases:
            data = casefile.dumps(case).encode()
            # Under the name that libFuzzer would give it.
            (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

    def draw(self) -> Drawn | None:
        """What libFuzzer wants run next; None when the process ended instead. Raises `RuntimeError` when that was a fault
        of ours."""
        self.start()
        self._stage = "drawing"
        self._log_start = self._stderr.tell() if self._stderr else 0
        try:
            message = self._message(time.monotonic() + DRAW_SECONDS)
            while message is not None and not isinstance(message, Drawn):
                message = self._message(time.monotonic() + DRAW_SECONDS)
        except (TimeoutError, MemoryError, ProtocolError) as error:
            reason = str(error)
        else:
            if message is not None:
                return message
            reason = self._cause_of_death()
        process = self._process
        self.kill()
        self._died(f"between two cases: {reason}")
        if process is not None and process.returncode == _FAULT:
            raise RuntimeError(f"libFuzzer's process {reason}; {self.log} says more")
        return None


class LibFuzzerSlot(Slot):
    """Judges the cases libFuzzer draws until the campaign is over."""

    def __init__(self, campaign: "Campaign", number: int, setup: Setup, directory: Path) -> None:
        super().__init__(campaign, number, setup, directory)
        bus = campaign.bus
        self.host = Host(
            setup,
            directory / f"atheris-{number}",
            f"{campaign.seed}:{number}:{campaign.results.position()[0]}",
            campaign.options.seeds,
            directory / "cache" / f"worker-{number}",
            directory / "workers" / f"atheris-{number}.log",
            started=lambda hello: bus.emit(WorkerStarted(number, hello.pid, hello.seconds)),
            died=lambda reason: bus.emit(WorkerDied(number, reason)),
        )

    def start_worker(self) -> Hello:
        """Start libFuzzer's process ahead of the thread, to learn whether it can work."""
        return self.host.start()

    def kill(self) -> None:
        """End both processes at once; called from other threads."""
        super().kill()
        self.host.kill()

    def close(self) -> None:
        """End both processes."""
        super().close()
        self.host.close()

    def _judge_next(self) -> bool:
        """Judge one case; False when the budget of cases is spent."""
        campaign = self.campaign
        if not campaign.indices.left:
            return False
        drawn = self._drawn()
        case = casefile.loads(drawn.case, "libFuzzer's case")
        check = request(case, campaign.schedule.always if drawn.again else campaign.schedule.subjects_for(case))
        result = self._completed(case, check, self._answer(case, lambda: self.host.check(check)))
        if not drawn.again or self._news(case, result):
            index = campaign.indices.take()
            if index is None:
                return False
            self._judged(Job(index, case, check), result)
        if not drawn.again:
            # A new process would have to run all of the corpus again before it comes to anything new.
            self._recycle(self.host, result, RECYCLE_CHECKS)
        return True

    def _news(self, case: Case, result: Result) -> bool:
        """Whether a case of an earlier process fails and was not judged then: a kill may come between libFuzzer's keeping
        it and the store's."""
        suspect, _ = self.campaign.desk.sort(case, result.results)
        return bool(suspect) and not self.campaign.results.raised(case.id)

    def _drawn(self) -> Drawn:
        for _ in range(_LIVES):
            drawn = self.host.draw()
            if self.campaign.killed:
                raise Stopped
            if drawn is not None:
                return drawn
        raise UserError(
            f"libFuzzer's process ends before it gives a case, {_LIVES} times in a row; see {self.host.log}"
        )
