"""An evaluator by rule: what each control gives is known."""

from dataclasses import replace

from fuzz.experiments import Trial
from fuzz.protocol import Hello, StepsTaken, SubjectResult, Verdict
from generators.program.case import Case


class Controls:
    """An evaluator under which the controls in `right` pass, those in `given` give that, and all else is `wrong`.

    Controls are named as "name" or "name argument"; without a control the subject's name counts. `device`:
    the worker's.
    """

    device = "cpu"

    def __init__(self, wrong: SubjectResult, *right: str, **given: SubjectResult) -> None:
        self.hello = Hello("2.13.0", "3.11", self.device, "g++", 1)
        self.asked: list[str] = []
        self._wrong, self._right, self._given = wrong, right, given

    def judge(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        """By the last control, else by the subject."""
        name = f"{trials[-1].experiment} {trials[-1].argument}".strip() if trials else subject
        self.asked.append(name)
        return self._given.get(name) or (SubjectResult(subject, Verdict.OK) if name in self._right else self._wrong)

    evaluate_or_raise = judge


def limit_steps(
    wrong: SubjectResult, kind: str, count: int, first: int, name: str = "step {}"
) -> dict[str, SubjectResult]:
    """What the experiment `kind` gives where there are so many, of which the one called `first` makes the case fail."""
    given = {}
    for most in (*range(count + 1), 1_000_000):
        taken = min(most, count)
        result = wrong if taken >= first else replace(wrong, verdict=Verdict.OK)
        given[f"{kind} {most}"] = replace(result, observations=(StepsTaken(taken, name.format(taken)),))
    return given
