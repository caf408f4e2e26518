"""One check: a case's source in, a verdict per subject out."""

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fuzz.check import failures, settings
from fuzz.check.attention.function import Unsupported
from fuzz.check.attention.standin import StandIn
from fuzz.check.attention.streaming import streaming
from fuzz.check.coverage import Fired
from fuzz.check.doubts import looked_into
from fuzz.check.oracle import agreement, constants
from fuzz.check.oracle.decide import Judge, Judgement
from fuzz.check.oracle.noise import Noise
from fuzz.check.oracle.reference import reference
from fuzz.check.program import Execution, Program, execute
from fuzz.check.subjects import Subject, SubjectError
from fuzz.protocol import EAGER, NOISE, REFERENCE, Check, Result, SubjectResult, Verdict

Announce = Callable[[str], None]


class Rejected(Exception):
    """Eager refuses the case; the text says how, in one line."""


def check(
    request: Check,
    subjects: dict[str, Subject],
    device: str,
    announce: Announce,
    rss_mib: Callable[[], float],
) -> Result:
    """Run the case of `request` on `subjects[name]` for every name it asks for.

    `announce` is called with the name of each stage before it starts, `rss_mib` once at the end. Whatever the case
    does, the result says; only faults of ours raise.
    """
    started = time.perf_counter()
    clock = Clock()
    results: list[SubjectResult] = []
    rejected = None
    try:
        case = Case(request, device, announce, clock)
    except Rejected as refusal:
        rejected = str(refusal)
    else:
        results = [case.run(name, subjects.get(name), announce) for name in request.subjects]
        case.program.close()
    seconds = time.perf_counter() - started
    return Result(
        request.id, rejected, tuple(results), round(seconds, 4), round(clock.seconds, 4), round(rss_mib(), 1)
    )


class Clock:
    """Adds up the time spent inside torch: within `with clock:`, which doesn't nest."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


class Case:
    """A case that eager accepts, with all that its subjects are judged by. Raises `Rejected`."""

    def __init__(self, request: Check, device: str, announce: Announce, clock: Clock) -> None:
        self.request = request
        self.clock = clock
        self._device = device
        self._cotangents: dict[str, torch.Tensor] | None = None
        self._dtypes: set[torch.dtype] = set()
        announce(EAGER)
        try:
            with clock:
                self.program = Program(request.source, device)
                self.eager = self._execute()
        except Exception as error:
            raise Rejected(failures.line(error)) from error
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
                self._judge = Judge(
                    self.eager, self.exact, self._replica, self._coarsest, random=request.random
                )
        except Exception as error:
            raise Rejected(f"no reference: {failures.line(error)}") from error

    def run(self, name: str, subject: Subject | None, announce: Announce) -> SubjectResult:
        """Compile and run one subject; everything it does wrong is in the result."""
        announce(name)
        started = time.perf_counter()
        same = None
        fired = Fired()
        with self.clock:
            if subject is None:
                judgement = Judgement(
                    Verdict.SKIPPED, f"this worker has no subject {name}, or no C++ compiler for it"
                )
            elif subject.attention is not None:
                judgement = self._attended(subject, fired)
            else:
                judgement, same = self._judged(subject, fired)
            settings.forget()
        return SubjectResult(
            name,
            judgement.verdict,
            judgement.message,
            judgement.numbers,
            fired.names,
            same,
            round(time.perf_counter() - started, 4),
            judgement.where,
        )

    def _judged(self, subject: Subject, fired: Fired) -> tuple[Judgement, bool | None]:
        module = self.program.module(self.request.training)
        try:
            with fired, settings.tf32_allowed() if subject.tf32 else nullcontext():
                call = subject.compile(module, self.request.dynamic)
                runs = [self._execute(call, module) for _ in range(max(1, self.request.repeat))]
        except SubjectError as error:
            return Judgement(Verdict.SKIPPED, str(error)), None
        except Exception as error:
            return Judgement(failures.verdict(error), failures.line(error)), None
        judgement = self._decided(runs)
        if judgement.verdict is Verdict.SKIPPED:
            return judgement, None
        judgement = looked_into(judgement, self, subject, (call, module), runs[0])
        return judgement, agreement.same(self.eager, runs[0], self.exact)

    def _attended(self, subject: Subject, fired: Fired) -> Judgement:
        """The verdict on a subject that computes the attention alone."""
        request = self.request
        if request.stand_in is None or subject.attention is None:
            return Judgement(Verdict.SKIPPED, "the case has no contract that says what its attention computes")
        try:
            stand_in = StandIn(request.stand_in, subject.attention, self._device, training=request.training)
        except (SubjectError, Unsupported) as refusal:
            return Judgement(Verdict.SKIPPED, str(refusal))
        except Exception as error:
            raise RuntimeError(f"a stand-in does not run: {failures.line(error)}") from error
        try:
            judgement = self._of_stand_in(subject, stand_in, fired)
            damage = stand_in.damage
        finally:
            stand_in.program.close()
        if judgement.verdict is Verdict.SKIPPED:
            return judgement
        if stand_in.differences and not judgement.verdict.is_finding:
            judgement = Judgement(Verdict.WRONG_RESULT, f"output: {stand_in.differences[0]}", judgement.numbers)
        if not damage:
            return judgement
        wrote = f"wrote {'; '.join(damage)}"
        if judgement.verdict.is_finding:
            return replace(judgement, message=f"{judgement.message}; {wrote}")
        return Judgement(Verdict.OUT_OF_BOUNDS, wrote, judgement.numbers)

    def _of_stand_in(self, subject: Subject, stand_in: StandIn, fired: Fired) -> Judgement:
        runs: list[Execution] = []
        module = stand_in.module()
        try:
            with fired:
                call = subject.compile(module, self.request.dynamic)
                for _ in range(max(1, self.request.repeat)):
                    runs.append(self._execute(call, module, stand_in.fresh()))
                    if stand_in.damage:
                        break
        except Unsupported as refusal:
            return Judgement(Verdict.SKIPPED, str(refusal))
        except NotImplementedError as error:  # in the backward pass
            return Judgement(Verdict.SKIPPED, f"it says {failures.line(error)}")
        except Exception as error:
            if not stand_in.accuses(error):
                return Judgement(Verdict.SKIPPED, f"the text around it does not run: {failures.line(error)}")
            return Judgement(failures.verdict(error), failures.line(error))
        return self._decided(runs, stand_in.dtypes, self._streamed)

    def _streamed(self) -> list[Execution]:
        """The case with attention that rounds as kernels do, under noise."""
        if self.request.random or self.request.stand_in is None:
            return []
        chance = torch.Generator()
        attend = functools.partial(streaming, chance=chance)
        program = Program(self.request.stand_in, self._device, {"attend": attend})
        try:
            return [
                self._execute(None, program.module(self.request.training), Noise(number))
                for number in range(constants.REPLICAS_BEFORE_WRONG)
            ]
        except RuntimeError as error:  # the text around it needs other strides
            if failures.verdict(error) is Verdict.OUT_OF_MEMORY:
                raise
            return []
        finally:
            program.close()

    def _decided(
        self,
        runs: list[Execution],
        handed: set[torch.dtype] | None = None,
        others: Callable[[], list[Execution]] = list,
    ) -> Judgement:
        try:
            judgement = self._judge.judge(runs[0], handed, others)
        except Exception as error:
            if failures.verdict(error) is not Verdict.OUT_OF_MEMORY:
                raise
            return Judgement(Verdict.SKIPPED, f"no memory left to judge it: {failures.line(error)}")
        if not judgement.verdict.is_finding and not self.request.random:
            judgement = _deterministic(runs) or judgement
        return judgement

    def _execute(
        self,
        call: Callable[..., Any] | None = None,
        module: nn.Module | None = None,
        mode: AbstractContextManager[Any] | None = None,
    ) -> Execution:
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

    def _replica(self, number: int) -> Execution:
        noise = Noise(number)
        execution = self._execute(mode=noise)
        self._dtypes |= noise.dtypes
        return execution

    def _coarsest(self) -> torch.dtype:
        return max(self._dtypes, key=lambda dtype: constants.UNIT_ROUNDOFF[dtype], default=torch.float32)


def _deterministic(runs: list[Execution]) -> Judgement | None:
    for run in runs[1:]:
        for name, value in runs[0].values.items():
            if name not in run.values or not agreement.same_bits(value, run.values[name]):
                return Judgement(Verdict.NONDETERMINISTIC, f"{name} differs between two runs on equal inputs")
    return None
