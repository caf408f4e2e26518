"""A failure under experiment: runs rows of `EXPERIMENTS` and compares what they give with the failure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry
from fuzz.bug_identity import bug_relevant_rewrites
from fuzz.evaluator import Evaluator, compare_outcome
from fuzz.experiments import EXPERIMENTS, Edit, KeepMemory, OtherSubject, Outcome, Trial, Tried
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.subjects import find_variant, get_spec
from generators.program.case import Case
from triage.attribution.case_edits import EDITS

_RAISED = {Verdict.COMPILE_ERROR: MechanismKind.COMPILING_RAISES, Verdict.RUNTIME_ERROR: MechanismKind.RUNNING_RAISES}
_FORMS = {"strides": MechanismKind.STRIDES, "memory": MechanismKind.MEMORY}
_DETAIL_LENGTH = 120
_ALL = 1_000_000
"""More steps than any program takes."""
_OTHER_DTYPE = "expected scalar type"
"""Part of the error that torch raises for tensors of two dtypes, when it compiles or when it runs."""


@dataclass(frozen=True, slots=True)
class Study:
    """A failure under experiment: `subject` gives `result` for the case of `entry`.

    `rewrite`: results without this rewrite ("sfdp_pattern_5") tell nothing.
    """

    evaluator: Evaluator
    entry: Entry
    subject: str
    result: SubjectResult
    rewrite: str = ""

    @property
    def case(self) -> Case:
        """The case that fails."""
        return self.entry.case

    def move(self, subject: str) -> "Study":
        """The study of the failure under another subject."""
        return replace(self, subject=subject, result=self.evaluator.judge(self.case, subject))

    def try_out(self, experiment: str, *, case: Case | None = None) -> Tried:
        """Run an experiment. `case`: the edited case, if the experiment has several."""
        row, here, subject = EXPERIMENTS[experiment], case or self.case, self.subject
        trials: tuple[Trial, ...] = ()
        if row.device not in ("", self.evaluator.hello.device):
            return Tried(experiment)
        if isinstance(row.change, OtherSubject):
            subject = subject_of(row.change.name, self.entry)
        elif isinstance(row.change, KeepMemory):
            subject = find_variant(subject, recomputes=False) or subject
        elif isinstance(row.change, Edit):
            edited = case or EDITS[experiment](here)
            if edited is None:
                return Tried(experiment, "", Outcome.DOES_NOT_APPLY)
            here = edited
        else:
            trials = (Trial(experiment),)
        return Tried(experiment, "", self._compare(self.evaluator.judge(here, subject, *trials)))

    def find_first_flip(self, experiments: Iterable[str]) -> tuple[Tried | None, tuple[Tried, ...]]:
        """The first experiment that flips, and all that were tried up to it."""
        tried: list[Tried] = []
        for experiment in experiments:
            tried.append(self.try_out(experiment))
            if tried[-1].flips:
                return tried[-1], tuple(tried)
        return None, tuple(one for one in tried if one.outcome is not Outcome.NOT_TRIED)

    def bisect(self, kind: str) -> Tried:
        """Find the first step of this kind (`decomposition`, `pass`, `lowering`) with which the case fails alike.

        The argument of the outcome names the step. It does not apply where the case fails without any step.
        """

        def judge(most: int) -> SubjectResult:
            return self.evaluator.judge(self.case, self.subject, Trial(kind, str(most)))

        unknown = Tried(kind, "", Outcome.DOES_NOT_APPLY)
        whole, without = judge(_ALL), self._compare(judge(0))
        is_alike = self._compare(whole) is Outcome.FAILS_ALIKE
        if not (whole.observations and is_alike and without is Outcome.PASSES):
            return unknown
        right, wrong = 0, whole.observations[0].count
        while wrong - right > 1:
            middle = (right + wrong) // 2
            is_alike = self._compare(judge(middle)) is Outcome.FAILS_ALIKE
            right, wrong = (right, middle) if is_alike else (middle, wrong)
        steps, outcome = judge(wrong).observations, self._compare(judge(right))
        return Tried(kind, steps[0].last, outcome) if steps and outcome is Outcome.PASSES else unknown

    def _compare(self, other: SubjectResult) -> Outcome:
        applies = not self.rewrite or self.rewrite in bug_relevant_rewrites(other.applied_rewrites)
        return compare_outcome(other, self.result, applies=applies)


def subject_of(stage: str, entry: Entry) -> str:
    """The variant of a subject that has the random stream, memory budget, settings and mode of the entry's."""
    kept = {name: getattr(get_spec(entry.subject), name) for name in ("random", "recomputes", "options", "mode")}
    return find_variant(stage, **kept) or stage


def mechanism_of(result: SubjectResult, values: MechanismKind | None = None) -> Mechanism:
    """How a result fails; `values`: the mechanism of wrong numbers."""
    kind, failure = _RAISED.get(result.verdict), result.failure
    if kind is not None:
        if isinstance(failure, Raised) and _OTHER_DTYPE in failure.text:
            return Mechanism(MechanismKind.TWO_DTYPES)
        key = failure and failure.key()
        return Mechanism(kind, details(error=key.text[:_DETAIL_LENGTH] if key else ""))
    if result.verdict is Verdict.METADATA:
        return Mechanism(_FORMS.get(getattr(failure, "aspect", ""), MechanismKind.FORM))
    return Mechanism(values or MechanismKind(result.verdict))
