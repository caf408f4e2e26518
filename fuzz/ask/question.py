"""Questions: what is to be judged, and how. `Asker.ask` is the only way to have it judged.

- `Evaluator` asks one worker.
- `Crew`, of a campaign's thread, asks several workers, if need be at once.
- `ModuleImport` asks about the parts of a user's module.
- `AnswerCache` asks another asker, and no question twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Flag
from typing import Protocol

from corpus.value_files import find_all
from fuzz.ask.worker_config import WorkerConfig
from fuzz.experiments import Trial
from fuzz.protocol import Check, DirectCalls, Dropout, Hello, Live, Result, SubjectResult
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, list_shown_dropouts, list_unplain, source
from generators.program.regions import REGIONS, call_directly, list_indirect


class ProcessState(Flag):
    """The process that answers a question."""

    WARM = 0  # a process that may have judged other cases
    FRESH = 1  # a new process
    BASELINE = 2  # a process of the interpreter of `--against`, which only a campaign has


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for the verdict on a case, or on a part of the user's module that a worker has loaded."""

    program: Case | Live
    subjects: tuple[str, ...]
    trials: tuple[Trial, ...] = ()  # the experiments to run the subjects under
    process: ProcessState = ProcessState.WARM
    repeat: int | None = None  # compiled runs that are compared bit by bit; None: as the asker's
    hashes: bool = False  # whether results carry the hashes of their values

    @property
    def case(self) -> Case:
        """The program, which is a case."""
        assert isinstance(self.program, Case)
        return self.program


def no_work() -> None:
    """There is nothing to do meanwhile."""


class Asker(Protocol):
    """Has questions answered."""

    @property
    def hello(self) -> Hello:
        """The `Hello` of its worker, which it starts if necessary. Raises `UserError` if no worker can be started."""

    @property
    def config(self) -> WorkerConfig:
        """How its worker is started."""

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        """The answer: a verdict on each subject, or why there is none. If the process dies, the answer says so.

        The earlier cases of a case run first, in a new process, in the same way.

        `meanwhile` is called once, while the process is busy with the question.

        Raises `UserError` when no worker can be started, `WorkerFault` when it fails itself, `Stopped` after a kill.
        """

    def ask_all(self, questions: Sequence[Question]) -> list[Result]:
        """The answers to questions that don't depend on each other. Raises as `ask`."""
        return [self.ask(question) for question in questions]


class AnswerCache(Asker):
    """Asks no question twice, unless it needs a fresh process. `repeat` makes no difference between questions.

    begin: called with each question that is asked; may raise
    """

    def __init__(self, asker: Asker, begin: Callable[[Question], None] = lambda question: None) -> None:
        self._asker, self._begin = asker, begin
        self._answers: dict[tuple[str, tuple[str, ...], tuple[Trial, ...]], Result] = {}
        self.asked = 0  # questions that were not remembered

    @property
    def hello(self) -> Hello:
        return self._asker.hello

    @property
    def config(self) -> WorkerConfig:
        return self._asker.config

    def ask(self, question: Question, meanwhile: Callable[[], object] = no_work) -> Result:
        key = question.case.canonical(), question.subjects, question.trials
        if ProcessState.FRESH in question.process or key not in self._answers:
            self._begin(question)
            self.asked += 1
            self._answers[key] = self._asker.ask(question, meanwhile)
        return self._answers[key]


def ask_each(questions: Sequence[tuple[Asker, Question]]) -> list[Result]:
    """The answers of workers that are asked a question each, all at the same time. Raises as `Asker.ask`."""
    if not questions:
        return []
    (asker, question), *rest = questions
    others: list[Result] = []
    first = asker.ask(question, lambda: others.extend(ask_each(rest)))
    return [first, *others]


def ask_or_raise(asker: Asker, question: Question) -> SubjectResult:
    """The result of the question's only subject. Raises `UserError` if eager refuses the case, and as `Asker.ask`."""
    result = asker.ask(question)
    if result.rejected is not None or not result.results:
        raise UserError(f"case {question.case.id}: eager refuses it: {result.rejected}")
    return result.only


def build_check(question: Question, *, repeat: int = 2, joins_kernels: bool = False) -> Check:
    """The request that a worker gets. `repeat`: for a question that leaves it open.

    joins_kernels: kernels may be built together; fresh processes build as users do
    """
    case, repeat = question.program, repeat if question.repeat is None else question.repeat
    joins_kernels = joins_kernels and ProcessState.FRESH not in question.process
    if isinstance(case, Live):
        return Check(0, "", question.subjects, repeat=repeat, hashes=question.hashes, live=case)
    return Check(
        id=0,
        source=source(case),
        subjects=question.subjects,
        plain=source(case, plain=True) if list_unplain(case) else "",
        regions=list_unplain(case),
        direct=tuple(_list_direct_calls(case)),
        training=case.training,
        dynamic=case.dynamic,
        random=is_random(case),
        derives=any(REGIONS[region.kind].is_transform for region in case.regions),
        dropouts=tuple(Dropout(*shown) for shown in list_shown_dropouts(case)),
        repeat=repeat,
        attention_stub=emit_attention_stub(case) if case.contracts else None,
        experiments=question.trials,
        settings=dict(case.settings),
        hashes=question.hashes,
        values=find_all(case),
        joins_kernels=joins_kernels,
    )


def _list_direct_calls(case: Case) -> Iterator[DirectCalls]:
    kinds = [kind for kind in list_indirect(case) if kind not in REGIONS or not REGIONS[kind].is_transform]
    for kind in kinds if list_unplain(case)[1:] else ():
        ops = {name for region in case.regions if region.kind == kind for name in region.ops}
        shared = [one.kind for one in case.regions if REGIONS[one.kind].is_transform and not ops.isdisjoint(one.ops)]
        yield DirectCalls((*shared, kind), source(call_directly(case, kind)))
