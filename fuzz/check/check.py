"""One check: a case's source in, a verdict per subject out."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fuzz.check import exceptions, settings
from fuzz.check.check_attention import attended
from fuzz.check.check_compiled import compiled
from fuzz.check.controls import ControlError, apply_controls
from fuzz.check.coverage import Coverage
from fuzz.check.exceptions import SuppressOutOfMemory
from fuzz.check.oracle import constants, dynamo_same
from fuzz.check.oracle.eager_audit import Suspicion
from fuzz.check.oracle.noise import Noise
from fuzz.check.oracle.reference import reference
from fuzz.check.oracle.verdict import Judge, Judgement
from fuzz.check.program import Execution, Program, device_lost, execute
from fuzz.check.subjects import Subject
from fuzz.protocol import EAGER, NOISE, REFERENCE, Check, ErrorMap, Result, SubjectResult, Verdict
from fuzz.protocol.controls import Observation
from fuzz.protocol.failures import Nondeterministic, NotTaken, Refusal
from fuzz.protocol.render import describe

Announce = Callable[[str], None]


class Rejected(Exception):
    """Eager refuses the case; the text says how, in one line."""


def check(
    request: Check, subjects: dict[str, Subject], device: str, announce: Announce, rss_mib: Callable[[], float]
) -> Result:
    """Run the case of `request` on `subjects[name]` for every name it asks for.

    `announce` is called with the name of each stage before it starts, `rss_mib` once at the end. Whatever the case
    does, the result says; only faults of ours raise.
    """
    started = time.perf_counter()
    clock, running = Clock(), Clock()
    results: list[SubjectResult] = []
    rejected = None
    try:
        case = Case(request, device, announce, clock, running)
    except Rejected as refusal:
        rejected = str(refusal)
    else:
        for name in request.subjects:
            results.append(case.run(name, subjects.get(name), announce))
            if device_lost(device):
                break
        case.program.close()
    seconds = time.perf_counter() - started
    return Result(
        request.id,
        rejected,
        tuple(results),
        round(seconds, 4),
        round(clock.seconds, 4),
        round(rss_mib(), 1),
        round(max(0.0, clock.seconds - running.seconds), 4),
        device_lost(device),
    )


class Clock:
    """Adds up the time spent inside torch: within `with clock:`, which doesn't nest."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


class Case:
    """A case that eager accepts, with all that its subjects are judged by. Raises `Rejected`.

    `clock` adds up all of the work in torch, `running` what eager and the subjects take of it: the rest is the oracle's.
    """

    def __init__(self, request: Check, device: str, announce: Announce, clock: Clock, running: Clock) -> None:
        self.request = request
        self.clock, self.running = clock, running
        self.device = device
        self._cotangents: dict[str, torch.Tensor] | None = None
        self._dtypes: set[torch.dtype] = set()
        announce(EAGER)
        try:
            with clock, running:
                self.program = Program(request.source, device)
                self.eager = self.execute()
        except Exception as error:
            raise Rejected(exceptions.line(error)) from error
        self._cotangents = self.eager.cotangents
        try:
            announce(REFERENCE)
            with clock:
                self.exact = reference(
                    self.program.module(request.training),
                    self.program.inputs(),
                    training=request.training,
                    cotangents=self._cotangents,
                )
            announce(NOISE)
            with clock:
                self.judge = Judge(self.eager, self.exact, self.replica, self.coarsest, random=request.random)
        except Exception as error:
            raise Rejected(f"no reference: {exceptions.line(error)}") from error
        self._suspicion = Suspicion(
            self.eager, self.exact, lambda audit: self.execute(mode=audit), self.coarsest(), random=request.random
        )

    def run(self, name: str, subject: Subject | None, announce: Announce) -> SubjectResult:
        """Compile and run one subject; everything it does wrong is in the result."""
        announce(name)
        started = time.perf_counter()
        same = None
        coverage = Coverage()
        observed: list[Observation] = []
        with self.clock:
            try:
                if subject is None:
                    judgement = Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNKNOWN_SUBJECT))
                else:
                    subject = apply_controls(subject, self.request.controls, observed.append)
                    judge = attended if subject.attention is not None else compiled
                    judgement, same = judge(self, subject, coverage)
            except ControlError as error:
                judgement = Judgement(Verdict.SKIPPED, NotTaken(Refusal.CONTROL, str(error)))
            with self.running:
                settings.forget()
        result = SubjectResult(
            subject=name,
            verdict=judgement.verdict,
            numbers=judgement.numbers,
            fired=coverage.fired,
            same=same,
            seconds=round(time.perf_counter() - started, 4),
            where=judgement.where,
            reached=coverage.reached,
            map=_map(judgement) if self.request.located else None,
            failure=judgement.failure,
            excuse=judgement.excuse,
            writes=judgement.writes,
            observations=tuple(dict.fromkeys(observed)),
        )
        return replace(result, message=describe(result))

    def unless_eager_is_wrong(self, judgement: Judgement, run: Execution, subject: Subject) -> Judgement:
        """`judgement` on what a subject gave, or, where that accuses nobody, that eager is the suspect."""
        if judgement.verdict.is_finding or judgement.verdict is Verdict.SKIPPED:
            return judgement
        by_calls = subject.attention is not None and not subject.attention.compiled
        call_is_right = by_calls and judgement.verdict in (Verdict.OK, Verdict.ROUNDING)
        with SuppressOutOfMemory():
            itself = subject.name == EAGER
            return self._suspicion.judgement(run, itself=itself, call_is_right=call_is_right) or judgement
        return judgement

    def decided(
        self,
        runs: list[Execution],
        handed: set[torch.dtype] | None = None,
        others: Callable[[], list[Execution]] = list,
    ) -> Judgement:
        """The verdict on the runs of a subject; `handed` and `others` as `Judge.judge` has them."""
        with SuppressOutOfMemory() as memory:
            judgement = self.judge.judge(runs[0], handed, others)
        if memory.error is not None:
            return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, exceptions.line(memory.error)))
        return judgement if self.request.random else self.repeated(judgement, runs)

    def repeated(self, judgement: Judgement, runs: list[Execution]) -> Judgement:
        """`judgement`, unless it is harmless and the runs differ from each other, where eager's do not."""
        if judgement.verdict.is_finding:
            return judgement
        different = _different(runs)
        if different is None or _different([self.eager, self.execute()]) is not None:
            return judgement
        return Judgement(Verdict.NONDETERMINISTIC, Nondeterministic(different))

    def execute(
        self,
        call: Callable[..., Any] | None = None,
        module: nn.Module | None = None,
        mode: AbstractContextManager[Any] | None = None,
    ) -> Execution:
        """One run of the case's module, or of `call` in its place, whose parameters are those of `module`."""
        if module is None:
            module = self.program.module(self.request.training)
        return execute(
            module if call is None else call,
            module,
            self.program.inputs(),
            training=self.request.training,
            cotangents=self._cotangents,
            mode=mode,
        )

    def replica(self, number: int) -> Execution:
        """Eager under noise number so and so."""
        noise = Noise(number)
        # A fused layer rounds within as often as one in steps, where a replica can move it.
        with settings.fast_path_off():
            execution = self.execute(mode=noise)
        self._dtypes |= noise.dtypes
        return execution

    def coarsest(self) -> torch.dtype:
        """The least precise float dtype that the replicas so far rounded to."""
        return max(self._dtypes, key=lambda dtype: constants.UNIT_ROUNDOFF[dtype], default=torch.float32)


def _map(judgement: Judgement) -> ErrorMap | None:
    """How far the value that `judgement` calls wrong is off; None where it calls none wrong."""
    with SuppressOutOfMemory():
        return judgement.map() if judgement.where else None
    return None


def _different(runs: list[Execution]) -> str | None:
    """The name of a value that is not the same bit for bit in all runs."""
    for run in runs[1:]:
        for name, value in runs[0].values.items():
            if name not in run.values or not dynamo_same.same_bits(value, run.values[name]):
                return name
    return None
