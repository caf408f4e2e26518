"""An asker without a worker."""

from collections.abc import Callable

from fuzz.ask.question import Asker, Question, no_work
from fuzz.ask.worker_config import WorkerConfig
from fuzz.experiments import Trial
from fuzz.protocol import Hello, Result, SubjectResult
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
