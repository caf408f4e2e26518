"""Askers without a worker."""

from collections.abc import Callable
from dataclasses import replace

from fuzz.ask.question import Asker, Question, no_work
from fuzz.ask.worker_config import WorkerConfig
from fuzz.experiments import Trial
from fuzz.protocol import Hello, Result, StepsTaken, SubjectResult, Verdict
from generators.program.case import Case


class FakeAsker(Asker):
    """Answers questions by a function of the case, the subject and the trials."""

    device = "cpu"

    def __init__(self, judge: Callable[..., SubjectResult]) -> None:
        self._judge = judge
        self.said = Hello("2.13.0", "3.11", self.device, "g++", 1)

    @property
    def hello(self) -> Hello:
        return self.said

    @property
    def config(self) -> WorkerConfig:
        return WorkerConfig(device=self.device)

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        meanwhile()
        (subject,) = question.subjects
        return Result(0, None, (self.judge(question.case, subject, *question.trials),))

    def judge(self, case: Case, subject: str, *trials: Trial) -> SubjectResult:
        """The answer to a question."""
        return self._judge(case, subject, *trials)


def fail_where(is_wrong: Callable[[Case, str], bool]) -> FakeAsker:
    """Answers with wrong results of the cases and subjects that a rule names."""
    wrong, right = Verdict.WRONG_RESULT, Verdict.OK
    return FakeAsker(lambda case, subject, *_: SubjectResult(subject, wrong if is_wrong(case, subject) else right))


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
