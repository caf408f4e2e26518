"""Experiments on one failure: change one thing, and see whether it passes."""

from dataclasses import dataclass

from corpus.causes import Mechanism, MechanismKind, details
from fuzz.bug_identity import rewrites
from fuzz.evaluator import Evaluator, compare_outcome
from fuzz.experiments import Outcome, Trial
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from generators.program.case import Case
from triage.attribution.root_cause import CaseChange, Experiment, FirstStep

_RAISED = {Verdict.COMPILE_ERROR: MechanismKind.COMPILING_RAISES, Verdict.RUNTIME_ERROR: MechanismKind.RUNNING_RAISES}
_FORMS = {"strides": MechanismKind.STRIDES, "memory": MechanismKind.MEMORY}
_DETAIL_LENGTH = 120
_ALL = 1_000_000
"""More steps than any program takes."""
_OTHER_DTYPE = "expected scalar type"
"""In what torch raises for tensors of two dtypes. Whether compiling or running does depends on who computes first."""


@dataclass(frozen=True, slots=True)
class Study:
    """A failure under experiment: `subject` gives `result` for `case`.

    `rewrite`: other cases without this rewrite ("sfdp_pattern_5") give no verdict.
    """

    evaluator: Evaluator
    case: Case
    subject: str
    result: SubjectResult
    rewrite: str = ""

    def try_control(self, name: str) -> Experiment:
        """The finding under one control."""
        control = Trial(name)
        result = self.evaluator.judge(self.case, self.subject, control)
        return Experiment(passes(result, self.result), control=control)

    def try_case(self, case: Case, change: CaseChange, subject: str = "") -> Experiment:
        """Another case in the place of the finding's, or another subject."""
        result = self.evaluator.judge(case, subject or self.subject)
        is_left_alone = self.rewrite and self.rewrite not in rewrites(result.fired)
        return Experiment(None if is_left_alone else passes(result, self.result), change=change)

    def bisect(self, kind: str) -> FirstStep | None:
        """The first step of this kind ("decomposition", "pass", "lowering") with which it fails as it does, after those
        before it; None where it does not pass without any."""

        def judge(most: int) -> SubjectResult:
            return self.evaluator.judge(self.case, self.subject, Trial(kind, str(most)))

        whole, without = judge(_ALL), judge(0)
        if not whole.observations or not self._is_alike(whole) or not passes(without, self.result):
            return None
        right, wrong = 0, whole.observations[0].count
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if self._is_alike(judge(middle)) else (middle, wrong)
        seen = judge(wrong).observations
        return FirstStep(kind, seen[0].last, wrong) if seen and passes(judge(right), self.result) else None

    def _is_alike(self, other: SubjectResult) -> bool:
        return compare_outcome(other, self.result) is Outcome.FAILS_ALIKE


def passes(result: SubjectResult | None, failure: SubjectResult) -> bool | None:
    """Whether a result shows no bug; None where it is no verdict."""
    outcome = compare_outcome(result, failure)
    return None if outcome is Outcome.DOES_NOT_APPLY else not outcome.fails


def mechanism_of(result: SubjectResult, values: MechanismKind | None = None) -> Mechanism:
    """How a result fails; `values` stands for wrong numbers."""
    kind, failure = _RAISED.get(result.verdict), result.failure
    if kind is not None:
        if isinstance(failure, Raised) and _OTHER_DTYPE in failure.text:
            return Mechanism(MechanismKind.TWO_DTYPES)
        error = failure.identity()[:_DETAIL_LENGTH] if failure is not None else ""
        return Mechanism(kind, details(error=error))
    if result.verdict is Verdict.METADATA:
        return Mechanism(_FORMS.get(getattr(failure, "aspect", ""), MechanismKind.FORM))
    return Mechanism(values or MechanismKind(result.verdict))
