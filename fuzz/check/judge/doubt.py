"""A run that is about to be called wrong, and further runs that may settle the doubt."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from fuzz.check.judge import constants
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.dropout_seeds import Compiled
from fuzz.check.judge.open_orders import HAVE_ANOTHER_ALGORITHM
from fuzz.check.run.program import Execution
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import apply_experiments
from fuzz.check.torch_api.compilation import TryApart
from fuzz.check.torch_api.coverage import Coverage
from fuzz.experiments import Trial
from fuzz.protocol import CoverageKind, SubjectResult, Verdict
from fuzz.protocol.failures import FormDiffers, NotFinite
from fuzz.subjects import is_user_function


@dataclass(frozen=True)
class Doubt:
    """A run of a subject that is about to be called wrong."""

    judgement: SubjectResult
    run: Execution
    case: CaseRun
    subject: Subject
    judge: Callable[..., SubjectResult]
    """Judges a run, beside right runs that `others` returns (`Judge.judge`)."""
    compiled: Compiled | None = None
    """None: it can't run again."""
    prove: Callable[[SubjectResult], SubjectResult] = lambda judgement: judgement
    """Adds the rewrites that are proven wrong or right in float64 on the operands of the case."""

    @property
    def is_of_strides(self) -> bool:
        """Whether only strides differ."""
        return isinstance(self.judgement.failure, FormDiffers) and self.judgement.failure.aspect == "strides"

    @property
    def is_low(self) -> bool:
        """Whether the case rounds to 16 bits."""
        return self.case.coarsest() in constants.LOW_PRECISION_DTYPES

    @property
    def is_fused_rightly(self) -> bool:
        """Whether rewrites are proven right and none wrong, and the case draws no random numbers."""
        is_proven = bool(self.judgement.right_rewrites) and not self.judgement.wrong_rewrites
        return is_proven and not self.case.request.random

    @property
    def draws_otherwise(self) -> bool:
        """Whether the subject can be compared with eager over other seeds."""
        is_single = not self.case.program.is_sequence or isinstance(self.judgement.failure, NotFinite)
        return is_single and self.compiled is not None

    def is_mended_by_casts(self) -> bool:
        """Whether the subject is right with all casts, compiled again, and wrong without.

        If it is right now without the option too, it fails only at times, and casts explain nothing.
        """
        with_casts = apply_experiments(self.subject, [Trial("casts_emulated")])
        return _is_wrong_again(self.case, with_casts) is False and bool(_is_wrong_again(self.case, self.subject))


def settle_draws(doubt: Doubt) -> Doubt:
    """`doubt` with the judgement `random_stream` exactly if other random numbers than eager's may explain the run.

    Right outputs under eager's random stream show that the dropout mask is eager's, so gradients are comparable.
    Sequences never run with other seeds. On CUDA, eager's dropout draws in another order than Inductor's.
    """
    judgement, case, run = doubt.judgement, doubt.case, doubt.run
    if not case.request.random or judgement.verdict not in (Verdict.NONFINITE, Verdict.RANDOM_STREAM):
        return doubt
    alike = replace(doubt, judge=case.make_judge(case.eager, random=False).judge)
    if judgement.verdict is Verdict.NONFINITE:
        # Other random numbers may lead to a division by 0 elsewhere.
        rest = case.judge.judge(run.merge(case.eager, lambda _, value: value.isfinite()))
        is_other = rest.verdict is Verdict.RANDOM_STREAM
        return replace(doubt, judgement=replace(judgement, verdict=rest.verdict, where=None)) if is_other else alike
    is_of_gradient = judgement.judged is not None and judgement.judged.is_gradient
    draws_alike = is_of_gradient and not (doubt.subject.spec.random or is_user_function(doubt.subject.name))
    draws_alike |= case.program.is_sequence and case.device == "cpu"
    return replace(alike, judgement=alike.judge(run)) if draws_alike else doubt


def is_documented(case: CaseRun, subject: Subject) -> bool:
    """Whether torch documents that an operation of the graph is nondeterministic. Either of these suffices:

    - torch warns that there is no deterministic algorithm.
    - In deterministic mode the operation has another algorithm, and runs are equal.
    """
    heard, coverage = list[warnings.WarningMessage](), Coverage()
    with coverage:
        again = apply_experiments(subject, [Trial("deterministic")])
        runs = _run_again(case, again, max(2, case.repeat), lambda: _listen(heard))
    operations = (item.name for item in coverage.items if item.kind is CoverageKind.OP)
    has_another = any(name.removeprefix("aten.").strip("_") in HAVE_ANOTHER_ALGORITHM for name in operations)
    return bool(heard) or (has_another and bool(runs) and case.find_unrepeated(runs) is None)


@contextmanager
def _listen(heard: list[warnings.WarningMessage]) -> Iterator[None]:
    """While entered, collects torch's warnings that an operation has no deterministic algorithm."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", r"(?s).*deterministic")
        # cuBLAS is nondeterministic only if several streams share its workspace.
        warnings.filterwarnings("ignore", r"(?s).*CuBLAS")
        try:
            yield
        finally:
            heard += caught


def _run_again(
    case: CaseRun, subject: Subject, times: int = 1, mode: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[Execution]:
    """Runs of `subject`, compiled once more; none if it raises."""
    with TryApart():
        return case.run_anew(subject, times, mode)
    return []


def _is_wrong_again(case: CaseRun, subject: Subject) -> bool | None:
    """Whether `subject`, compiled and run once more, is still a finding; None if it raises."""
    runs = _run_again(case, subject)
    if not runs:
        return None
    with subject.apply_settings():
        return case.judge.judge(runs[0]).verdict.is_finding
