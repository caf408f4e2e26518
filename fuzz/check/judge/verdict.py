"""The verdict on a run of a subject: whether it is further from the float64 result than rounding explains."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.row_error_bound import Envelope, find_possible_values, largest_finite, locate
from fuzz.check.run.program import Execution, same_numbers
from fuzz.check.run.tensor_memory import as_real, name_dtype
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DifferentElements, Failure, FormDiffers, NotTaken, Refusal, Value
from fuzz.protocol.places import Place


@dataclass(frozen=True)
class RightRuns:
    """Right runs of a case."""

    exact: Execution
    """In float64, with eager's discrete choices."""
    rounded: tuple[Execution, ...]
    """They round otherwise than eager, and make its choices."""
    chosen: tuple[Execution, ...] = ()
    """They make other choices."""
    chooses: bool = False
    """Whether the program makes choices."""
    count: int = 0
    """Of replicas."""
    choosing: int = 0
    """Of runs that make other choices on purpose."""

    def join(self, others: "RightRuns") -> "RightRuns":
        """These runs, and those of `others` but for its exact run."""
        return replace(self, rounded=self.rounded + others.rounded, chosen=self.chosen + others.chosen)


def conclude(
    verdict: Verdict,
    failure: Failure | None = None,
    numbers: dict[str, float] | None = None,
    judged: Value | None = None,
    *,
    wrong: Tensor | None = None,
    raised_at: Place | None = None,
) -> SubjectResult:
    """The result of the subject at hand, which `check` names. `wrong`: a mask of the wrong elements of `judged`."""
    where = None if wrong is None or judged is None else locate(judged, wrong)
    return SubjectResult("", verdict, numbers or {}, where=where, failure=failure, raised_at=raised_at, judged=judged)


def skip(refusal: Refusal, why: str = "", operator: str = "") -> SubjectResult:
    """The result of a subject that does not take a case; `operator`: that it does not take."""
    return conclude(Verdict.SKIPPED, NotTaken(refusal, why, operator))


class Judge:
    """Judges any number of subjects on one case.

    right: returns right runs with the given numbers of replicas, and of runs that make other choices. At first
        `REPLICAS` and none, more before a value is called wrong
    coarsest: the least precise float dtype of the case, known after the first replicas
    of_calls: `coarsest` of each call, by number; empty if not known
    derives: outputs are computed from derivatives
    """

    def __init__(
        self,
        eager: Execution,
        right: Callable[[int, int], RightRuns],
        coarsest: Callable[[], torch.dtype],
        of_calls: Callable[[], dict[int, torch.dtype]] = dict,
        *,
        random: bool,
        derives: bool = False,
    ) -> None:
        self._eager, self._right, self._random = eager, right, random
        self._known = _Known(right(constants.REPLICAS, 0))
        self._coarsest, self._of_calls = coarsest(), of_calls()
        self._terms = largest_gradient(self._known.runs.exact)
        self._terms_of_outputs = constants.TERMS_OF_DERIVATIVES if derives else 0.0

    def judge(self, compiled: Execution, others: RightRuns | None = None) -> SubjectResult:
        """The verdict on a run of a subject. others: more right runs, which round in other places than eager or make
        other choices; looked at before a value is called wrong."""
        form = find_form_difference(self._eager, compiled)
        if form is not None:
            return conclude(Verdict.METADATA, form)
        judgement = self.judge_numbers(compiled, others)
        if judgement.verdict.is_finding:
            return judgement
        layout = find_stride_difference(self._eager, compiled)
        return judgement if layout is None else conclude(Verdict.METADATA, layout, judgement.numbers)

    def judge_numbers(self, compiled: Execution, others: RightRuns | None = None) -> SubjectResult:
        """As `judge`, of values alone. Their forms are eager's."""
        judgement = self._measure(compiled, self._known)
        for count in (0, *constants.CHOOSING_RUNS):
            runs = self._known.runs
            is_known = runs.count >= constants.REPLICAS_BEFORE_WRONG and runs.choosing >= count
            by_choice = judgement.verdict is Verdict.ILL_CONDITIONED and runs.chosen
            needs_more = judgement.verdict.has_wrong_numbers or by_choice
            if count == constants.CHOOSING_RUNS[-1]:
                needs_more = judgement.where is not None and judgement.where.wrong <= constants.FEW_WRONG
            if needs_more and not is_known and (runs.chooses or not count):
                self._known = _Known(self._right(constants.REPLICAS_BEFORE_WRONG, count))
                judgement = self._measure(compiled, self._known)
        if judgement.verdict.has_wrong_numbers and others is not None:
            judgement = self._measure(compiled, _Known(self._known.runs.join(others)))
        if judgement.verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT) and self._random:
            judgement = replace(judgement, verdict=Verdict.RANDOM_STREAM, where=None)
        return judgement

    def list_wrong(self, compiled: Execution) -> list[Value]:
        """The values that are further from the truth than rounding explains, in order, by the replicas so far."""
        pairs = [(name, *self._pair_values(name, compiled)) for name in self._eager.values]
        judged = ((name, self._judge_value(name, mine, theirs, self._known)) for name, mine, theirs in pairs)
        return [name for name, judgement in judged if judgement.verdict.has_wrong_numbers]

    def _measure(self, compiled: Execution, known: "_Known") -> SubjectResult:
        names = [*self._eager.values, *(name for name in compiled.gradients if name not in self._eager.gradients)]
        pairs = [(name, *self._pair_values(name, compiled)) for name in names]
        return pick_worst(
            [self._judge_value(name, eager, value, known) for name, eager, value in pairs],
            lambda item: (item.verdict.severity, item.numbers["ratio"]),
        )

    def _pair_values(self, name: Value, compiled: Execution) -> tuple[Tensor, Tensor]:
        """A value of eager and of the subject. A missing gradient counts as 0, a missing write as no change."""
        eager, value = self._eager.values.get(name), compiled.values.get(name, self._eager.before.get(name))
        if eager is None:
            assert value is not None
            return torch.zeros_like(value), value
        return eager, torch.zeros_like(eager) if value is None else value

    def _judge_value(self, name: Value, eager: Tensor, value: Tensor, known: "_Known") -> SubjectResult:
        eager, value = as_real(eager), as_real(value)
        rows = float(math.prod(eager.shape[:-1]))
        if not eager.numel() or same_numbers(eager, value):
            return conclude(Verdict.OK, None, {"ratio": 0.0, "rows_wrong": 0.0, "rows_total": rows})
        wrong = Verdict.WRONG_GRADIENT if name.is_gradient else Verdict.WRONG_RESULT
        if not eager.is_floating_point():
            # Rounding alone decides the elements on which right runs disagree, and only between what these give.
            runs = (known.runs.exact, *known.runs.rounded, *known.runs.chosen)
            right = [run.values.get(name, eager) for run in runs]
            agreed = torch.stack([eager == values for values in right]).all(0)
            off = (eager != value) & agreed
            if not agreed.all():
                errors = (value.double() - eager.double()).abs()
                possible = find_possible_values(eager.double(), right, torch.zeros_like(errors), ~agreed)
                if possible is not None:
                    off |= ~agreed & (possible.replace_errors(value.double(), errors, limit=1.0) > 0)
            different = DifferentElements(name, int(off.sum()), eager.numel(), name_dtype(eager.dtype))
            if not different.count:
                return conclude(Verdict.ILL_CONDITIONED, None, {"ratio": 0.0, "rows_wrong": 0.0, "rows_total": rows})
            numbers = {"ratio": math.inf, "rows_wrong": rows, "rows_total": rows, "limit": 0.0}
            return conclude(wrong, different, numbers, name, wrong=off)
        envelope = self._envelope(name, eager, known)
        verdict, failure, numbers = envelope.judge(name, value, wrong)
        doubted = envelope.find_wrong(value) if verdict.has_wrong_numbers else None
        return conclude(verdict, failure, numbers, name, wrong=doubted)

    def _envelope(self, name: Value, eager: Tensor, known: "_Known") -> Envelope:
        if name not in known.envelopes:
            exact, zeros = known.runs.exact.values, torch.zeros_like(eager)
            rounded, chosen = (
                [as_real(run.values.get(name, zeros)) for run in runs]
                for runs in (known.runs.rounded, known.runs.chosen)
            )
            known.envelopes[name] = Envelope(
                eager,
                as_real(exact.get(name, zeros)),
                rounded,
                self._of_calls.get(name.call, self._coarsest),
                self._terms if name.is_gradient else self._terms_of_outputs,
                chosen=chosen,
            )
        return known.envelopes[name]


@dataclass(frozen=True)
class _Known:
    """Right runs, and their envelopes by value."""

    runs: RightRuns
    envelopes: dict[Value, Envelope] = field(default_factory=dict)


def find_form_difference(eager: Execution, compiled: Execution) -> FormDiffers | None:
    """The first difference in structure, shared memory, mutation, dtype, shape or device."""
    if eager.structure != compiled.structure:
        return FormDiffers("structure", compiled.structure, eager.structure)
    for name, owner in compiled.shared.items():
        if owner != eager.shared.get(name, owner):
            return FormDiffers("memory", value=name, actual_owner=owner, expected_owner=eager.shared[name])
    for name in compiled.mutated:
        if name not in eager.mutated:
            return FormDiffers("mutation", "changed", "unchanged", name)
    for name in [name for name in eager.values if name in compiled.values]:
        mine, theirs = (
            {
                "dtype": name_dtype(run.values[name].dtype),
                "shape": str(list(run.values[name].shape)),
                "device": run.devices.get(name, ""),
            }
            for run in (compiled, eager)
        )
        for what in (what for what in mine if mine[what] != theirs[what]):
            return FormDiffers(what, mine[what], theirs[what], name)
    return None


def find_stride_difference(eager: Execution, compiled: Execution) -> FormDiffers | None:
    """The first output whose dimensions lie in another order in memory than eager's.

    Inductor keeps the strides of outputs (`torch._inductor.config.keep_output_stride`), since callers may take views.
    Gradients, dimensions of size 1 and empty tensors are not compared: Inductor promises nothing about them.
    """
    for name, expected in eager.outputs.items():
        value = compiled.outputs[name]
        if expected.numel() and order_dims(expected) != order_dims(value):
            return FormDiffers("strides", str(list(value.stride())), str(list(expected.stride())), name)
    return None


def is_same_for_dynamo(eager: Execution, compiled: Execution, exact: Execution) -> bool:
    """Whether PyTorch's own check, `torch._dynamo.utils.same`, accepts outputs and gradients with its default
    tolerance.

    Elements that are NaN in eager and in float64 become 0: the check accepts any error in a tensor that has a NaN.
    """
    from torch._dynamo.utils import same

    names = [name for name in eager.values if name in compiled.values and name in exact.values]
    if len(names) != len(eager.values):
        return False
    unknown = {name: eager.values[name].isnan() & exact.values[name].isnan() for name in names}
    theirs, mine, truth = (
        [run.values[name].masked_fill(unknown[name], 0) if unknown[name].any() else run.values[name] for name in names]
        for run in (eager, compiled, exact)
    )
    try:
        return bool(same(theirs, mine, fp64_ref=truth, equal_nan=True, log_error=lambda *_: None))
    except (RuntimeError, AssertionError):  # shapes that don't broadcast
        return False


def order_dims(value: Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost, without dimensions of size 1."""
    sizes, strides = value.shape, value.stride()
    return sorted((dim for dim in range(value.dim()) if sizes[dim] > 1), key=lambda dim: (-strides[dim], dim))


def largest_gradient(exact: Execution) -> float:
    """The largest magnitude of all gradients, which is the size of the terms behind a gradient of 0."""
    return max(map(largest_finite, exact.gradients.values()), default=0.0)


def pick_worst(judgements: list[SubjectResult], rank: Callable[[SubjectResult], tuple[Any, ...]]) -> SubjectResult:
    """The judgement of the highest rank, with the row counts summed over all judgements."""
    if not judgements:
        return conclude(Verdict.OK)
    worst = max(judgements, key=rank)
    totals = {key: sum(item.numbers[key] for item in judgements) for key in ("rows_wrong", "rows_total")}
    return replace(worst, numbers={**worst.numbers, **totals})
