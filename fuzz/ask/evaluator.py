"""Evaluates cases in a worker, for campaigns, command lines and triage alike."""

import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from corpus.value_files import find_all
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.experiments import Trial
from fuzz.protocol import Check, DirectCalls, Dropout, Hello, Result, SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Refusal
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, list_shown_dropouts, list_unplain, source
from generators.program.regions import REGIONS, call_directly, list_indirect

RECYCLE_CHECKS = 512
"""A process is replaced after this many checks, whatever its memory, so that all its cases are known as `earlier`."""

_RECYCLE_SHARE = 0.5
"""A process is replaced when it has used this share of the memory that was still free after its first check. With CUDA
the first check alone takes 2 GiB."""


class Judged(NamedTuple):
    """A case that a process has judged."""

    case: Case
    subjects: tuple[str, ...]


class Evaluator:
    """Evaluates cases in one worker, which it starts and replaces. Subjects whose verdicts
    are lost with a process are judged again.

    Only one thread may ask. Any thread may kill `process`; the thread that waits for a result then raises `Stopped`.
    """

    def __init__(
        self,
        process: WorkerProcess,
        *,
        repeat: int = 2,
        remember: bool = False,
        recycle_checks: int = RECYCLE_CHECKS,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.process = process
        self.repeat = repeat  # as in `Check`
        self.remember = remember  # evaluate a case once under the same subjects and experiments
        self._recycle_checks = recycle_checks
        self._first_mib = self._rss_mib = 0.0
        self._sent: tuple[Check, Case | None, Hello | None] | None = None
        self.earlier: tuple[Judged, ...] = ()  # judged by the same process before the last case
        self._judged = deque[Judged](maxlen=RECYCLE_CHECKS)  # by the process that said this:
        self._judge: Hello | None = None
        self._memory: dict[tuple[str, tuple[str, ...], tuple[Trial, ...]], Result] = {}
        self._others: dict[str, Evaluator] = {}  # by device
        self._scratch = scratch  # removed when this is closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> WorkerConfig:
        """How its worker is started."""
        return self.process.config

    @property
    def hello(self) -> Hello:
        """Start the worker if necessary, and return its `Hello`. Raises `UserError` when it can't work here."""
        return self.process.start()

    def require(self, subject: str) -> None:
        """Raises `UserError` when the worker has no such subject."""
        known = self.hello.subjects
        if known and subject not in known:
            raise UserError(f"unknown subject {subject!r}; there are {', '.join(known)}")

    def evaluate(
        self, case: Case, subjects: tuple[str, ...], *, experiments: tuple[Trial, ...] = (), fresh: bool = False
    ) -> Result:
        """Evaluate a case under subjects. `fresh`: in a new process. If the process dies, the result says so.

        The earlier cases of a case run first, in a new process, under the same subjects and experiments.

        Raises `UserError` when no worker can be started, `WorkerFault` when it fails itself.
        """
        key = (case.canonical() if self.remember else "", subjects, experiments)
        if self.remember and not fresh and key in self._memory:
            return self._memory[key]
        if fresh or case.before:
            self.process.replace()
        for one in (*(earlier.case for earlier in case.before for _ in range(earlier.times)), case):
            self.submit(build_check(one, subjects, repeat=self.repeat, experiments=experiments), one)
            result = self.collect()
        if case.before:
            self.process.replace()  # what they left behind would spoil the next case
        self.recycle()
        if self.remember:
            self._memory[key] = result
        return result

    def submit_with_hashes(self, case: Case, subjects: tuple[str, ...]) -> None:
        """Hand over a case whose results carry the hashes of their values. Raises `UserError`."""
        self.recycle()
        self.submit(replace(build_check(case, subjects, repeat=self.repeat), hashes=True), case)

    def judge(self, case: Case, subject: str, *experiments: Trial) -> SubjectResult:
        """The result of one subject; `skipped` if eager refuses the case. Raises as `evaluate`."""
        result = self.evaluate(case, (subject,), experiments=experiments)
        if result.results:
            return result.results[0]
        why = result.rejected or ""
        return SubjectResult(subject, Verdict.SKIPPED, failure=NotTaken(Refusal.NO_VERDICT, why))

    def evaluate_or_raise(self, case: Case, subject: str, *experiments: Trial, fresh: bool = False) -> SubjectResult:
        """As `judge`. Raises `UserError` if eager refuses the case."""
        result = self.evaluate(case, (subject,), experiments=experiments, fresh=fresh)
        if result.rejected is not None or not result.results:
            raise UserError(f"case {case.id}: eager refuses it: {result.rejected}")
        return result.results[0]

    def submit(self, check: Check, case: Case | None = None) -> None:
        """Hand over a check without waiting; `collect` gives its result. Raises `UserError`.

        `case`: to be remembered in `earlier`
        """
        self.process.send(check)
        self._sent = check, case, self.process.hello

    def collect(self) -> Result:
        """The result of the last check, with the verdicts that were lost with its process. Raises `WorkerFault`."""
        assert self._sent is not None
        (check, case, judge), self._sent = self._sent, None
        result = self.process.receive()
        judge = self.process.hello or judge
        if judge is not self._judge:
            self._judged.clear()
            self._judge = judge
        if case is not None:
            self.earlier = tuple(self._judged)
            self._judged.append(Judged(case, check.subjects))
        if self.process.checks == 1 and self.process.hello is not None:
            self._first_mib = result.rss_mib
        self._rss_mib = result.rss_mib
        if result.unfit:
            breaks = bool(result.results) and result.results[-1].verdict is Verdict.DEVICE_ERROR
            return self._name_kernel(check, result) if breaks and not self.config.variables else result
        lost = result.results[0].subject if len(result.results) == 1 else ""
        if lost not in check.subjects[1:]:
            return result
        # The process died with the verdicts of earlier subjects; they are judged again.
        self.submit(replace(check, subjects=check.subjects[: check.subjects.index(lost)]))
        earlier = self.collect()
        return replace(result, hashes=earlier.hashes, results=(*earlier.results, *result.results))

    def _name_kernel(self, check: Check, result: Result) -> Result:
        """The result of a check in which a kernel broke the GPU, named by synchronous launches if it fails again."""
        *others, broken = result.results
        config = self.config
        self.process.config = replace(config, variables=(("CUDA_LAUNCH_BLOCKING", "1"),))
        self.submit(replace(check, subjects=(broken.subject,)))
        named = self.collect().results
        self.process.config = config
        self.process.replace()
        is_same = bool(named) and named[0].verdict is broken.verdict
        return replace(result, results=(*others, *(named if is_same else (broken,))))

    def recycle(self) -> None:
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
                replace(self.config, device=device),
                own_cache=self.config.cache is not None,
                repeat=self.repeat,
                remember=self.remember,
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


def open_evaluator(
    config: WorkerConfig, *, own_cache: bool = True, repeat: int = 2, remember: bool = False
) -> Evaluator:
    """An evaluator that removes its compiled code when it is closed, unless that is in torch's cache."""
    scratch = tempfile.TemporaryDirectory(prefix="attnfuzz-")
    config = replace(config, cache=Path(scratch.name) / "cache" if own_cache else None)
    return Evaluator(WorkerProcess(config, PipeTransport()), repeat=repeat, remember=remember, scratch=scratch)


def build_check(
    case: Case, subjects: tuple[str, ...], *, repeat: int = 2, experiments: tuple[Trial, ...] = ()
) -> Check:
    """The request to judge `case` under `subjects`."""
    return Check(
        id=0,
        source=source(case),
        subjects=subjects,
        plain=source(case, plain=True) if list_unplain(case) else "",
        regions=list_unplain(case),
        direct=tuple(_list_direct_calls(case)),
        training=case.training,
        dynamic=case.dynamic,
        random=is_random(case),
        derives=any(REGIONS[region.kind].is_transform for region in case.regions),
        dropouts=tuple(Dropout(*shown) for shown in list_shown_dropouts(case)),
        repeat=repeat,
        attention_stub=emit_attention_stub(case) if case.contracts else None,
        experiments=experiments,
        settings=dict(case.settings),
        values=find_all(case),
    )


def _list_direct_calls(case: Case) -> Iterator[DirectCalls]:
    kinds = [kind for kind in list_indirect(case) if kind not in REGIONS or not REGIONS[kind].is_transform]
    for kind in kinds if list_unplain(case)[1:] else ():
        ops = {name for region in case.regions if region.kind == kind for name in region.ops}
        shared = [one.kind for one in case.regions if REGIONS[one.kind].is_transform and not ops.isdisjoint(one.ops)]
        yield DirectCalls((*shared, kind), source(call_directly(case, kind)))
