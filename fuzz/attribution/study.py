"""A failure under experiment: runs rows of `EXPERIMENTS` and compares their results with the failure."""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry
from fuzz.ask.evaluator import Evaluator
from fuzz.bug_identity import WRONG_NUMBERS, bug_relevant_rewrites, compare_outcome, operation_of
from fuzz.experiments import EXPERIMENTS, Edit, OtherSubject, OtherWrite, Outcome, StepLimit, Trial, Tried, WithoutAxis
from fuzz.protocol import StepsTaken, SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.subjects import find_variant, get_spec
from generators.program.case import Attr, Case, Op
from generators.program.edits import (
    change_dtype,
    make_contiguous,
    make_name,
    map_attributes,
    map_inputs,
    prune_if_valid,
)
from generators.program.type_check import make_op, types_of
from generators.program.values import FLOATS, LOW_PRECISION

_RAISED = {Verdict.COMPILE_ERROR: MechanismKind.COMPILING_RAISES, Verdict.RUNTIME_ERROR: MechanismKind.RUNNING_RAISES}
_FORMS = {"strides": MechanismKind.STRIDES, "memory": MechanismKind.MEMORY}
_DETAIL_LENGTH = 120
_ALL = 1_000_000
"""More steps than any compilation takes."""
_OTHER_DTYPE = "expected scalar type"
"""Part of the error that torch raises for tensors of two dtypes, when it compiles or when it runs."""
OVERLAPPING = ("unfold", "expand", "expand_as", "as_strided")
"""Operations whose results may overlap in memory."""


@dataclass(frozen=True, slots=True)
class Study:
    """A failure under experiment: `subject` gives `result` for the case of `entry`.

    `rewrite`: a result counts only if this rewrite ("sfdp_pattern_5") was applied. If the failure is a faulty operation
    of its replacement, a result fails only if that operation is wrong.

    `deadline`: of `time.monotonic()`; after it no experiment begins, and outcomes are `NOT_TRIED`.
    """

    evaluator: Evaluator
    entry: Entry
    subject: str
    result: SubjectResult
    rewrite: str = ""
    deadline: float = math.inf

    @property
    def is_time_up(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def case(self) -> Case:
        """The case that fails."""
        return self.entry.case

    def try_out(self, experiment: str, argument: str = "", *, case: Case | None = None) -> Tried:
        """Run an experiment. `case`: the edited case, for an experiment with several edits."""
        row, trials = EXPERIMENTS[experiment], list[Trial]()
        here: Case | None = case or self.case
        subject: str | None = self.subject
        if row.device not in ("", self.evaluator.hello.device):
            return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
        if self.is_time_up:
            return Tried(experiment, argument)
        match row.change:
            case StepLimit() if not argument:
                return self._bisect(experiment)
            case OtherSubject(name):
                subject = subject_of(name, self.entry)
            case WithoutAxis(axis):
                has_axis = getattr(get_spec(self.subject), axis)
                subject = find_variant(self.subject, **{axis: False}) if has_axis else None
            case Edit() | OtherWrite():
                here = case or keep_if_changed(self.case, EDITS[experiment](self.case))
            case _:
                trials.append(Trial(experiment, argument))
        if here is None or subject is None:
            return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
        return Tried(experiment, argument, self._compare(self.evaluator.judge(here, subject, *trials)))

    def find_first_flip(self, experiments: Iterable[str]) -> tuple[Tried | None, tuple[Tried, ...]]:
        """The first experiment that flips, and all experiments before it that fail, or that time was too short for."""
        failing: list[Tried] = []
        for tried in map(self.try_out, experiments):
            if tried.flips:
                return tried, tuple(failing)
            failing += [tried] if tried.outcome.fails or tried.outcome is Outcome.NOT_TRIED else []
        return None, tuple(failing)

    def _bisect(self, kind: str) -> Tried:
        """Find the first step of this kind (`decomposition`, `pass`, `lowering`) with which the case fails alike.

        The argument of the outcome names the step. It does not apply if the case fails with all steps off.
        """

        def judge(most: int) -> tuple[Outcome, StepsTaken | None]:
            if self.is_time_up:
                return Outcome.NOT_TRIED, None
            result = self.evaluator.judge(self.case, self.subject, Trial(kind, str(most)))
            taken = next((one for one in result.observations if isinstance(one, StepsTaken)), None)
            return self._compare(result), taken

        def fails_alike(most: int) -> bool:
            return judge(most)[0] is Outcome.FAILS_ALIKE

        steps = judge(_ALL)[1]
        if not (steps and fails_alike(_ALL) and judge(0)[0] is Outcome.PASSES):
            return Tried(kind, "", Outcome.NOT_TRIED if self.is_time_up else Outcome.DOES_NOT_APPLY)
        most = bisect_left(range(steps.count), True, lo=1, key=fails_alike)
        steps, outcome = judge(most)[1], judge(most - 1)[0]
        if steps is None or outcome is Outcome.NOT_TRIED:
            return Tried(kind)
        return (
            Tried(kind, steps.last, outcome) if outcome is Outcome.PASSES else Tried(kind, "", Outcome.DOES_NOT_APPLY)
        )

    def _compare(self, other: SubjectResult) -> Outcome:
        applies = not self.rewrite or self.rewrite in bug_relevant_rewrites(other.applied_rewrites)
        called = {"", *(one.operation for one in other.wrong_rewrites)}
        if self.rewrite and other.verdict in WRONG_NUMBERS and operation_of(self.result) not in called:
            other = replace(other, verdict=Verdict.OK)  # the rewrite is wrong, but the operation under study is right
        return compare_outcome(other, self.result, applies=applies)


def subject_of(stage: str, entry: Entry) -> str:
    """The variant of a subject with the random stream, memory budget, caches, settings and keywords of the entry's."""
    axes = ("random", "recomputes", "warm", "options", "keywords")
    kept = {name: getattr(get_spec(entry.subject), name) for name in axes}
    return find_variant(stage, **kept) or stage


def mechanism_of(result: SubjectResult, values: MechanismKind | None = None) -> Mechanism:
    """The mechanism of a failing result; `values`: the mechanism of wrong numbers."""
    kind, failure = _RAISED.get(result.verdict), result.failure
    if kind is not None:
        if isinstance(failure, Raised) and _OTHER_DTYPE in failure.text:
            return Mechanism(MechanismKind.TWO_DTYPES)
        key = failure and failure.key()
        return Mechanism(kind, details(error=key.text[:_DETAIL_LENGTH] if key else ""))
    if result.verdict is Verdict.METADATA:
        return Mechanism(_FORMS.get(getattr(failure, "aspect", ""), MechanismKind.FORM))
    return Mechanism(values or MechanismKind(result.verdict))


def list_low_precision(case: Case) -> list[str]:
    """The low-precision dtypes of the case's values."""
    return sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))


def _with_positive_scale(case: Case) -> Case:
    def change(name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        positive = abs(value) or (1.0 if name == "scale" else value) if is_number else value  # type: ignore[arg-type]
        return positive if name in ("scale", "other") else value

    contracts = tuple(replace(contract, scale=abs(contract.scale) or 1.0) for contract in case.contracts)
    return replace(map_attributes(case, change), contracts=contracts)


def _with_contiguous_operands(case: Case) -> Case:
    """Inserts contiguous copies of query, key and value, and of values that overlap in memory."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    # Copies elsewhere would keep attention patterns from matching.
    wanted |= {arg for op in case.ops if op.kind == "sdpa" for arg in op.args[:3]}
    wanted |= {op.name for op in case.ops if op.kind in OVERLAPPING}
    ops: list[Op] = []
    for op in case.ops:
        name = make_name(case, f"{op.name[:24]}_strided", (op.name for op in ops)) if op.name in wanted else op.name
        ops.append(replace(op, name=name))
        if op.name in wanted:
            ops.append(make_op(op.name, "clone", (name,), {"memory_format": "contiguous"}))
    return make_contiguous(replace(case, ops=tuple(ops)))


def _in_one_dtype(case: Case) -> Case:
    low = list_low_precision(case)
    return map_inputs(case, lambda item: replace(item, dtype=low[0]) if low and item.dtype in FLOATS else item)


def keep_if_changed(case: Case, edited: Case) -> Case | None:
    """The edited case; None if nothing changed or the case became invalid."""
    made = prune_if_valid(edited)
    return None if made is None or made.canonical() == case.canonical() else made


EDITS: dict[str, Callable[[Case], Case]] = {
    "positive_scale": _with_positive_scale,
    "contiguous": _with_contiguous_operands,
    "one_dtype": _in_one_dtype,
    "float32": lambda case: change_dtype(case, LOW_PRECISION, "float32"),
}
"""Edits of a case, by the id of their experiment."""
