"""In which order an investigation asks: the public subject compiles small cases, if these show the failure."""

import pytest

from corpus import casefile
from fuzz.campaign.investigation import Investigation
from fuzz.events import SuspicionOutcome
from fuzz.experiments import Trial
from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case
from tests.fake_asker import FakeAsker
from tests.programs import program

CHAIN = casefile.loads(program("S: 3", {"x": "S"}, "a = exp x", "b = sin a", "c = tanh b", "out = neg c"))
WRONG = SubjectResult("passes", Verdict.WRONG_RESULT)


@pytest.mark.parametrize(("least", "compiled"), [(1, [1]), (2, [1, 4]), (5, [1, 4])])
def test_a_large_case_is_compiled_only_if_the_smallest_is_right(least: int, compiled: list[int]) -> None:
    """Graph passes are wrong about every sine; compiled code is, in programs of that many operations at least."""
    asked: list[int] = []

    def judge(case: Case, subject: str, *_: Trial) -> SubjectResult:
        count = len(case.ops)
        if subject == "inductor":
            asked.append(count)
        is_wrong = any(op.kind == "sin" for op in case.ops) and (subject == "passes" or count >= least)
        return SubjectResult(subject, Verdict.WRONG_RESULT if is_wrong else Verdict.OK)

    found = Investigation(CHAIN, WRONG, ("inductor",), FakeAsker(judge), lambda: False).run()
    assert found.outcome is (SuspicionOutcome.FINDING if least <= len(CHAIN.ops) else SuspicionOutcome.INTERNAL_ONLY)
    assert list(dict.fromkeys(asked))[:2] == compiled
    if found.outcome is SuspicionOutcome.FINDING:
        assert len(found.case.ops) == least
