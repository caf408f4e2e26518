"""A case that eager accepts: runs its module, and judges the runs of subjects."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fuzz.check.judge import constants
from fuzz.check.judge.choices import ChoiceMode
from fuzz.check.judge.modes import Noise, reference
from fuzz.check.judge.open_orders import AnotherOrder
from fuzz.check.judge.operations import Nested
from fuzz.check.judge.verdict import Judge, RightRuns, conclude
from fuzz.check.run.live_program import LiveProgram
from fuzz.check.run.program import Execution, Program, Tensors, execute, same_numbers
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import enter
from fuzz.check.torch_api import exceptions
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory
from fuzz.experiments import Trial
from fuzz.protocol import EAGER, NOISE, REFERENCE, Check, Parted, SubjectResult, Verdict
from fuzz.protocol.failures import Nondeterministic, NotTaken, Refusal, Value

Announce = Callable[..., None]
"""Called with the name of each stage before it starts, and again with observations that the process may not survive."""


class Rejected(Exception):
    """Eager refuses the case, or there is no reference; the text is the error, in one line."""

    def __init__(self, text: str, stage: str) -> None:
        super().__init__(text)
        self.stage = stage


class CaseRun:
    """A case that eager accepts, with its eager run, exact run and noise. Raises `Rejected`."""

    def __init__(self, request: Check, device: str, announce: Announce, program: Program | None = None) -> None:
        """`program`: in place of the text of `request`."""
        self.request, self.device = request, device
        self.announce = announce
        self._cotangents: Tensors | None = None
        self._dtypes: dict[int, set[torch.dtype]] = {}
        self._ordered: list[Execution] = []
        announce(EAGER)
        try:
            # The text that subjects run comes last: its settings of torch stay.
            plain = Program(request.plain, device) if request.plain else None
            self.program = program or Program(request.source, device)
            self.plain = plain or self.program
            self.eager = self.execute()
        except Exception as error:
            raise Rejected(exceptions.line(error), EAGER) from error
        self._cotangents = self.eager.cotangents
        try:
            announce(REFERENCE)
            self.right = Replicas(self)
            self.exact = self.right.exact
            announce(NOISE)
            self.judge = self.make_judge(self.eager, random=request.random)
        except Exception as error:
            raise Rejected(f"no reference: {exceptions.line(error)}", REFERENCE) from error

    def compute_exactly(self, choices: AbstractContextManager[Any]) -> Execution:
        """The float64 reference, with these choices, or under another mode."""
        module = self.plain.module(self.request.training)
        training, calls = self.request.training, self.plain.calls
        return reference(module, calls, training=training, cotangents=self._cotangents, choices=choices)

    def make_judge(self, eager: Execution, *, random: bool, right: "Replicas | None" = None) -> Judge:
        """Judges subjects against this run of eager. random: they may draw other random numbers."""
        return Judge(
            eager,
            right or self.right,
            self.coarsest,
            self.coarsest_of_calls,
            random=random,
            derives=self.request.derives,
        )

    def compile(self, subject: Subject, module: nn.Module) -> Callable[..., Any]:
        """A function of `subject` that is called like `module`."""
        dynamic = self.dynamic
        if dynamic is None and subject.compiler is not None:
            dynamic = self.program.is_sequence and subject.compiler.capabilities.dynamic
        return self.program.compile(subject.compile, module, dynamic)

    def close(self) -> None:
        """End the programs, as `Program.close`."""
        self.program.close()
        self.plain.close()

    @property
    def dynamic(self) -> bool | None:
        """Whether sizes are dynamic; None: torch decides at each call."""
        return None if self.program.is_sequence or self.request.live is not None else self.request.dynamic

    @property
    def shards(self) -> dict[str, Any]:
        """Along which axes inputs are split over ranks, by name (fuzz/check/run/sharded.py)."""
        return getattr(self.program.module(self.request.training), "shards", {})

    @property
    def repeat(self) -> int:
        """The number of runs of a subject. A sequence of calls that is repeated runs once more.

        Its later calls compile dynamic code, which the first call uses from the second run on. So the first run may
        differ from the others.
        """
        wanted = max(1, self.request.repeat)
        return wanted + 1 if self.program.is_sequence and wanted > 1 else wanted

    def judge_runs(self, runs: list[Execution]) -> SubjectResult:
        with SuppressOutOfMemory() as caught:
            judgement = self.judge.judge(runs[0])
            return judgement if self.request.random else self.compare_runs(judgement, runs)
        return conclude(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, caught.line))

    def compare_runs(self, judgement: SubjectResult, runs: list[Execution]) -> SubjectResult:
        """Nondeterministic if all of these hold, else `judgement`.

        - `judgement` is harmless.
        - The runs differ.
        - Two eager runs are equal.
        """
        if judgement.verdict.is_finding:
            return judgement
        different = self.find_unrepeated(runs)
        if different is None or find_difference([self.eager, self.execute()]) is not None:
            return judgement
        return conclude(Verdict.NONDETERMINISTIC, Nondeterministic(different))

    def find_unrepeated(self, runs: list[Execution]) -> Value | None:
        """The first value that should be equal in all runs and differs; None if there is none."""
        different = find_difference(runs)
        if different is not None and self.program.is_sequence and not self.judge.judge(runs[-1]).verdict.is_finding:
            return find_difference(runs[1:])
        return different

    def find_unjudged(self) -> tuple[Value, ...]:
        """Eager's values with finite elements where float64 has none, so that no result can be called wrong there."""
        pairs = ((name, value, self.exact.values.get(name, value)) for name, value in self.eager.values.items())
        found = ((name, value, truth) for name, value, truth in pairs if value.is_floating_point())
        return tuple(name for name, value, truth in found if bool((value.isfinite() & ~truth.isfinite()).any()))

    def find_parting(self, run: Execution) -> list[Parted]:
        """The first of several watched values that is wrong in `run`: an output of a case, or a watched part of a live
        module. Empty if none is watched."""
        live, outputs = self.request.live, list(self.eager.outputs)
        if not (live.watched if live is not None else len(outputs) > 1):
            return []
        wrong = (name for name in self.judge.list_wrong(run) if name.kind == "output" and not name.is_gradient)
        places = [name.name for name in wrong if isinstance(name.name, int)]
        if not isinstance(self.program, LiveProgram):
            return [Parted(output=next(iter(places), None))]
        parts = self.program.name_outputs()
        return [Parted(next((parts[place] for place in places if place < len(parts)), ""))]

    def execute(
        self,
        call: Callable[..., Any] | None = None,
        module: nn.Module | None = None,
        mode: AbstractContextManager[Any] | None = None,
        program: Program | None = None,
    ) -> Execution:
        """One run of the case's module, or of a subject's `call` with the parameters of `module`.

        A `mode` sees the plain text.
        """
        program = program or (self.program if mode is None else self.plain)
        if module is None:
            module = program.module(self.request.training)
        return execute(
            module if call is None else call,
            module,
            program.calls(module),
            training=self.request.training,
            cotangents=self._cotangents,
            mode=mode,
            watched=call is not None,
        )

    def run_anew(
        self, subject: Subject, times: int = 1, mode: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> list[Execution]:
        """Runs of `subject`, which compiles for them. Raises its exceptions."""
        module = self.program.module(self.request.training)
        with subject.apply_settings():
            call = self.compile(subject, module)
            return [self.execute(call, module, mode()) for _ in range(times)]

    def run_noisily(self, noise: Noise, choices: ChoiceMode) -> Execution:
        """Eager under noise, with these choices."""
        # Noise can move results inside a layer only off the fast path, which rounds as often.
        with enter(Trial("fast_path_off")):
            execution = self.execute(mode=Nested(noise, choices))
        for call, dtypes in enumerate(noise.dtypes, 1):
            self._dtypes.setdefault(call, set()).update(dtypes)
        return execution

    def run_in_other_orders(self, count: int) -> tuple[Execution, ...]:
        """Eager in this number of other orders, which the documentation leaves open; empty if it leaves none open.

        Every other run is under noise: how far rounding moves a result may depend on the order.
        """
        for number in range(len(self._ordered), count):
            order = AnotherOrder(number)
            run = self.execute(mode=Nested(Noise(number), order) if number % 2 else order)
            if not order.met:
                return ()
            self._ordered.append(run)
        return tuple(self._ordered[:count])

    def coarsest(self) -> torch.dtype:
        """The least precise float dtype that the replicas so far rounded to."""
        return constants.coarsest(*(set[torch.dtype]().union(*self._dtypes.values()) or {torch.float32}))

    def coarsest_of_calls(self) -> dict[int, torch.dtype]:
        """`coarsest` of each call of a sequence, by number; empty if a call may read results of another call."""
        if not self.program.is_sequence or self.eager.mutated or self.eager.gradients:
            return {}
        return {call: constants.coarsest(*dtypes) for call, dtypes in self._dtypes.items() if dtypes}


class Replicas:
    """The right runs of a case, with any number of replicas. `exact`: the float64 reference, free in its choices."""

    def __init__(self, case: CaseRun) -> None:
        self._case, self._choices_of_exact = case, ChoiceMode()
        self.exact = case.compute_exactly(self._choices_of_exact)
        self._free: list[Execution] = []
        self._chooses_otherwise: list[bool | None] = []  # than eager, by replica; None: it chooses as the reference
        self._held: dict[int, Execution] = {}
        self._choosing = 0
        self._chosen: list[Execution] = []

    def __call__(self, count: int, choosing: int) -> RightRuns:
        """The right runs with at least these numbers of replicas, and of runs with choices that larger noise makes.

        Where replicas, or the reference, make other choices than eager, they run again with eager's.
        """
        for number in range(len(self._free), count):
            choices = ChoiceMode()
            self._free.append(self._case.run_noisily(Noise(number), choices))
            is_other = choices.differ(self._choices_of_exact)
            self._chooses_otherwise.append(choices.differ(self.eager_choices) if is_other else None)
        for number in range(self._choosing, choosing):
            self._choose(number)
        numbers = self._choices_of_exact.are_any, len(self._free), self._choosing
        if not self._chosen and not any(known is not None for known in self._chooses_otherwise):
            return RightRuns(self.exact, tuple(self._free), (), *numbers)
        is_other = self._choices_of_exact.differ(self.eager_choices)
        chooses = (is_other if known is None else known for known in self._chooses_otherwise)
        others = [number for number, is_otherwise in enumerate(chooses) if is_otherwise]
        for number in others:
            if number not in self._held:
                self._held[number] = self._case.run_noisily(Noise(number), ChoiceMode(self.eager_choices))
        rounded = tuple(self._held.get(number, run) for number, run in enumerate(self._free))
        chosen = (*(self._free[number] for number in others), *self._chosen, *((self.exact,) if is_other else ()))
        return RightRuns(self._exact_held if is_other else self.exact, rounded, chosen, *numbers)

    def _choose(self, number: int) -> None:
        """Add a run of eager with choices that noise makes, if these are not eager's."""
        self._choosing = number + 1
        choices = ChoiceMode()
        share = constants.CHOOSING_SHARES[number % 2]
        self._case.run_noisily(Noise(number, constants.choosing_ulps, share), choices)
        if choices.differ(self.eager_choices):
            self._chosen.append(self._case.execute(mode=ChoiceMode(choices)))

    @cached_property
    def eager_choices(self) -> ChoiceMode:
        choices = ChoiceMode()
        self._case.execute(mode=choices)
        return choices

    @cached_property
    def _exact_held(self) -> Execution:
        return self._case.compute_exactly(ChoiceMode(self.eager_choices))


def find_difference(runs: list[Execution]) -> Value | None:
    """The first value that differs between runs; None if there is none."""
    pairs = ((name, value, run.values.get(name)) for run in runs[1:] for name, value in runs[0].values.items())
    return next((name for name, mine, other in pairs if other is None or not same_numbers(mine, other)), None)
