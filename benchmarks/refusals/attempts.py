"""Judges drawn programs that one reason alone turns away: torch refuses them too, or the reason costs programs."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.protocol.failures import NotTaken
from fuzz.protocol.render import describe
from generators import errors
from generators.errors import CaseError
from generators.program.case import Case
from generators.program.type_check import check, is_valid
from generators.reasons import Reason, Refuser
from generators.sampling import builder

_TRIED = (Refuser.TORCH, Refuser.OPEN, Refuser.OURS)
_SUBJECT = "aot_eager"
_SUBJECTS = ("passes", "passes_random", "aot_eager")


@dataclass
class Attempts:
    """The outcomes of programs that a reason turns away."""

    answers: Counter[str] = field(default_factory=Counter)  # verdicts, or how the program failed before
    texts: Counter[str] = field(default_factory=Counter)  # errors and failures, in words

    def as_data(self) -> dict[str, Any]:
        return {"answers": dict(self.answers), "texts": dict(self.texts.most_common(4))}


def try_refused(draw: Callable[[int], object], number: int, most: int) -> Mapping[Reason, Attempts]:
    """By reason: what came of up to `most` of the programs that it alone turns away in this many draws."""
    found = _collect(draw, number, most)
    attempts: dict[Reason, Attempts] = defaultdict(Attempts)
    with open_evaluator(WorkerConfig(memory_mib=8192), own_cache=False, repeat=1) as evaluator:
        for reason, cases in found.items():
            for case in cases:
                answer, text = _judge(evaluator, case)
                attempts[reason].answers[answer] += 1
                attempts[reason].texts[text[:200]] += bool(text)
                print(f"{reason.name}: {answer} {text[:160]}", file=sys.stderr, flush=True)
    return attempts


def count_not_judged(draw: Callable[[int], Case], number: int) -> dict[str, Any]:
    """How many of this many drawn programs a worker turns away, by the stage, and a subject, by its `Refusal`."""
    rows = Counter[str]()
    with open_evaluator(WorkerConfig(memory_mib=8192), own_cache=False, repeat=1) as evaluator:
        for index in range(number):
            result = evaluator.ask(Question(draw(index), _SUBJECTS))
            rows.update([f"worker {result.stage}"] if result.rejected is not None else ())
            taken = (one.failure for one in result.results)
            rows.update({failure.why.value for failure in taken if isinstance(failure, NotTaken)})
    return {"drawn": number, "rows": dict(rows)}


def _judge(evaluator: Evaluator, case: Case) -> tuple[str, str]:
    try:
        result = evaluator.ask(Question(case, (_SUBJECT,)))
    except Exception as error:  # noqa: BLE001 - the text of such a program can't be written
        return "no text", f"{type(error).__name__}: {error}"
    if result.rejected is not None:
        return f"refused by {result.stage}", result.rejected
    return str(result.only.verdict), describe(result.only)


def _collect(draw: Callable[[int], object], number: int, most: int) -> dict[Reason, list[Case]]:
    """Programs that a reason alone turns away, by reason."""
    found: dict[Reason, list[Case]] = defaultdict(list)

    def check_and_keep(case: Case) -> object:
        try:
            return check(case)
        except CaseError as error:
            reason = error.row
            if reason and reason.why.refuser in _TRIED and len(found[reason]) < most and _is_alone(case, reason):
                found[reason].append(case)
            raise

    with mock.patch.object(builder, "check", check_and_keep):
        for index in range(number):
            draw(index)
    return found


def _is_alone(case: Case, reason: Reason) -> bool:
    with lift(reason):
        try:
            return is_valid(case)
        except Exception:  # noqa: BLE001 - later rules rely on the one that is lifted
            return False


@contextmanager
def lift(reason: Reason) -> Iterator[None]:
    """While entered, this reason turns no case away."""
    require, require_of = errors.require, errors.require_of

    def require_others(fact: bool, text: str, given: Reason | None = None) -> None:
        require(fact or given is reason, text, given)

    def require_others_of(op: str, fact: bool, mistake: str, given: Reason | None = None) -> None:
        require_of(op, fact or given is reason, mistake, given)

    others = {"require": require_others, "require_of": require_others_of}
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("generators.program")]:
            for name in others.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, others[name]))
        yield
