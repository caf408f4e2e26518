"""Experiments on one failure: change one thing, and see whether it passes."""

from collections.abc import Iterable
from dataclasses import dataclass

from fuzz.bug_identity import PROCESS, rewrites
from fuzz.evaluator import Evaluator, shows_bug
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import Control
from fuzz.protocol.failures import FormDiffers, Raised
from generators.program.case import Case
from triage.attribution.root_cause import CaseChange, Experiment, Mechanism, MechanismKind

_RAISED = {Verdict.COMPILE_ERROR: MechanismKind.COMPILING_RAISES, Verdict.RUNTIME_ERROR: MechanismKind.RUNNING_RAISES}
_DETAIL_LENGTH = 120
_OTHER_DTYPE = "expected scalar type"
"""In what torch raises for tensors of two dtypes. Whether compiling or running does depends on who computes first."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A mechanism, and the change that makes the failure pass where it is the one: a control or another case.

    `error`: what torch's exception says because of it; where the change gets rid of that, another failure that comes to
    light counts as none.
    """

    mechanism: Mechanism
    control: Control | None = None
    change: CaseChange | None = None
    case: Case | None = None
    error: str = ""


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

    def judge(self, *controls: Control, case: Case | None = None) -> SubjectResult:
        """What the subject gives under controls, or for another case."""
        result = self.evaluator.judge(case or self.case, self.subject, *controls)
        if case is not None and self.rewrite and self.rewrite not in rewrites(result.fired):
            return SubjectResult(self.subject, Verdict.SKIPPED)
        return result

    def try_control(self, name: str, argument: str = "") -> Experiment:
        """The finding under one control."""
        control = Control(name, argument)
        return Experiment(passes(self.judge(control)), control=control)

    def try_case(self, case: Case, change: CaseChange, detail: str = "") -> Experiment:
        """Another case in the place of the finding's."""
        return Experiment(passes(self.judge(case=case)), change=change, detail=detail)

    def find(self, hypotheses: Iterable[Hypothesis]) -> tuple[Mechanism, Experiment] | None:
        """The first of these that holds, with the experiment that shows it."""
        for one in hypotheses:
            changed = self.judge(*filter(None, [one.control]), case=one.case)
            was_raised = bool(one.error) and _raises(self.result, one.error)
            is_gone = changed.verdict not in {Verdict.SKIPPED, *PROCESS} and not _raises(changed, one.error)
            if passes(changed) or (was_raised and is_gone):
                return one.mechanism, Experiment(True, control=one.control, change=one.change)
        return None


def passes(result: SubjectResult | None) -> bool | None:
    """Whether a result shows no bug; None where it is no verdict."""
    fails = shows_bug(result)
    return None if fails is None else not fails


def mechanism_of(result: SubjectResult, values: MechanismKind | None = None) -> Mechanism:
    """How a result fails; `values` stands for wrong numbers."""
    kind, failure = _RAISED.get(result.verdict), result.failure
    if kind is not None:
        identity = failure.identity() if failure is not None else ""
        if _raises(result, _OTHER_DTYPE):
            return Mechanism(MechanismKind.TWO_DTYPES)
        return Mechanism(kind, identity[:_DETAIL_LENGTH])
    if result.verdict is Verdict.METADATA:
        is_strides = isinstance(failure, FormDiffers) and failure.aspect == "strides"
        return Mechanism(MechanismKind.STRIDES if is_strides else MechanismKind.FORM)
    return Mechanism(values or MechanismKind.of(result.verdict))


def _raises(result: SubjectResult, text: str) -> bool:
    return isinstance(result.failure, Raised) and text in result.failure.text
