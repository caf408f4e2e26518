"""An evaluator whose results are known, by experiment."""

from dataclasses import replace

from fuzz.experiments import Trial
from fuzz.protocol import StepsTaken, SubjectResult, Verdict
from generators.program.case import Case
from tests.fake_asker import FakeAsker


class FakeEvaluator(FakeAsker):
    """Experiments in `right` pass, those in `given` have that result, and all else has `wrong`.

    An experiment is named as "id" or "id argument", or by the subject without one. `device`: the worker's.
    """

    def __init__(self, wrong: SubjectResult, *right: str, **given: SubjectResult) -> None:
        super().__init__(self._find)
        self.asked: list[str] = []
        self._wrong, self._right, self._given = wrong, right, given

    def _find(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        name = f"{trials[-1].experiment} {trials[-1].argument}".strip() if trials else subject
        self.asked.append(name)
        return self._given.get(name) or (SubjectResult(subject, Verdict.OK) if name in self._right else self._wrong)


def limit_steps(
    wrong: SubjectResult, kind: str, count: int, first: int, name: str = "step {}"
) -> dict[str, SubjectResult]:
    """The results of limiting steps of a kind, of which there are `count`; step `first` makes the case fail."""
    given = {}
    for most in (*range(count + 1), 1_000_000):
        taken = min(most, count)
        result = wrong if taken >= first else replace(wrong, verdict=Verdict.OK)
        given[f"{kind} {most}"] = replace(result, observations=(StepsTaken(taken, name.format(taken)),))
    return given
