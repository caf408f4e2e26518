"""Asks one worker, for campaigns, command lines and triage alike."""

import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from fuzz.ask.question import Asker, ProcessState, Question, build_check, no_work
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.protocol import Check, Hello, Result, Verdict
from generators.errors import UserError
from generators.program.case import Case

RECYCLE_CHECKS = 512
"""A process is replaced after this many checks, whatever its memory, so that all its cases are known as `earlier`."""

_RECYCLE_SHARE = 0.5
"""A process is replaced when it has used this share of the memory that was still free after its first check. With CUDA
the first check alone takes 2 GiB."""


class Judged(NamedTuple):
    """A case that a process has judged."""

    case: Case
    subjects: tuple[str, ...]


class Evaluator(Asker):
    """Asks one worker, which it starts and replaces. Subjects whose verdicts are lost with a process are judged again.

    Only one thread may ask. Any thread may kill `process`; the thread that waits for a result then raises `Stopped`.
    """

    def __init__(
        self,
        process: WorkerProcess,
        *,
        repeat: int = 2,
        recycle_checks: int = RECYCLE_CHECKS,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.process = process
        self.repeat = repeat  # of questions that leave it open
        self._recycle_checks = recycle_checks
        self._first_mib = self._rss_mib = 0.0
        self.earlier: tuple[Judged, ...] = ()  # judged by the same process before the last case
        self._judged = deque[Judged](maxlen=RECYCLE_CHECKS)  # by the process that said this:
        self._judge: Hello | None = None
        self._others: dict[str, Evaluator] = {}  # by device
        self._scratch = scratch  # removed when this is closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> WorkerConfig:
        return self.process.config

    @property
    def hello(self) -> Hello:
        return self.process.start()

    def require(self, subject: str) -> None:
        """Raises `UserError` when the worker has no such subject."""
        known = self.hello.subjects
        if known and subject not in known:
            raise UserError(f"unknown subject {subject!r}; there are {', '.join(known)}")

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        before = question.case.before
        if before or ProcessState.FRESH in question.process:
            self.process.replace()
        for case in (earlier.case for earlier in before for _ in range(earlier.times)):
            self._judge_case(replace(question, program=case))
        result = self._judge_case(question, meanwhile)
        if before:
            self.process.replace()  # what they left behind would spoil the next case
        self._recycle()
        return result

    def _judge_case(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        check = build_check(question, repeat=self.repeat, joins_kernels=self.config.cache is not None)
        result = self._check(check, meanwhile)
        self.earlier = tuple(self._judged)
        self._judged.append(Judged(question.case, question.subjects))
        if result.unfit:
            breaks = bool(result.results) and result.results[-1].verdict is Verdict.DEVICE_ERROR
            return self._name_kernel(check, result) if breaks and not self.config.variables else result
        return self._complete(check, result)

    def _check(self, check: Check, meanwhile: Callable[[], object] = no_work) -> Result:
        self.process.send(check)
        judge = self.process.hello
        meanwhile()
        result = self.process.receive()
        judge = self.process.hello or judge
        if judge is not self._judge:
            self._judged.clear()
            self._judge = judge
        if self.process.checks == 1 and self.process.hello is not None:
            self._first_mib = result.rss_mib
        self._rss_mib = result.rss_mib
        return result

    def _complete(self, check: Check, result: Result) -> Result:
        """The result with the verdicts of earlier subjects that its process took with it, which are judged again."""
        lost = result.results[0].subject if len(result.results) == 1 else ""
        if lost not in check.subjects[1:]:
            return result
        check = replace(check, subjects=check.subjects[: check.subjects.index(lost)])
        earlier = self._complete(check, self._check(check))
        return replace(result, hashes=earlier.hashes, results=(*earlier.results, *result.results))

    def _name_kernel(self, check: Check, result: Result) -> Result:
        """The result of a check in which a kernel broke the GPU, named by synchronous launches if it fails again."""
        *others, broken = result.results
        config = self.config
        self.process.config = replace(config, variables=(("CUDA_LAUNCH_BLOCKING", "1"),))
        named = self._check(replace(check, subjects=(broken.subject,))).results
        self.process.config = config
        self.process.replace()
        is_same = bool(named) and named[0].verdict is broken.verdict
        return replace(result, results=(*others, *(named if is_same else (broken,))))

    def _recycle(self) -> None:
        """Replace the process when it has done many checks, and before its memory grows past the limit."""
        checks, left = self.process.checks, max(0.0, self.config.memory_mib - self._first_mib)
        is_large = self._rss_mib > self._first_mib + _RECYCLE_SHARE * left
        if checks >= self._recycle_checks or (is_large and checks > 1):
            self.process.replace()

    def on(self, device: str) -> "Evaluator":
        """The evaluator of the same interpreter for another device; it ends with this one."""
        if device == self.config.device:
            return self
        if device not in self._others:
            self._others[device] = open_evaluator(
                replace(self.config, device=device), own_cache=self.config.cache is not None, repeat=self.repeat
            )
        return self._others[device]

    def close(self) -> None:
        """End the process, and those of other devices."""
        for other in self._others.values():
            other.close()
        self._others.clear()
        self.process.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def open_evaluator(config: WorkerConfig, *, own_cache: bool = True, repeat: int = 2) -> Evaluator:
    """An evaluator that removes its compiled code when it is closed, unless that is in torch's cache."""
    scratch = tempfile.TemporaryDirectory(prefix="attnfuzz-")
    config = replace(config, cache=Path(scratch.name) / "cache" if own_cache else None)
    return Evaluator(WorkerProcess(config, PipeTransport()), repeat=repeat, scratch=scratch)
