"""What is at fault below Inductor's graph passes, from controls whose verdicts are known."""

from typing import cast

import pytest

from corpus.entry import Entry, Expectation
from fuzz.protocol import SubjectResult, Verdict
from generators.case import Case
from tests.triage.controls import Controls
from triage.attribution.cause import Cause, attributed
from triage.attribution.trials import Trials

REACHED = ("lowering aten.add", "lowering aten.exp", "lowering aten.relu", "op aten.mm")
WRONG = SubjectResult("inductor", Verdict.WRONG_RESULT, "output 0: off", reached=REACHED)
BEFORE = ("eager", "aot_eager", "aot_eager_decomp_partition", "passes")


def below(case: Case, *right: str) -> Cause:
    entry = Entry(case, expect=Expectation("known", subject="inductor"))
    controls = Controls(WRONG, *BEFORE, *right, passes_dynamic=SubjectResult("", Verdict.OK))
    return attributed(entry, cast("Trials", controls)).cause


@pytest.mark.parametrize(
    ("right", "stage", "part"),
    [
        (("eager_relu",), "lowering", "relu"),
        (("eager_relu", "unfused"), "lowering", "relu"),
        (("eager_add", "eager_relu", "unfused"), "codegen", "fusion"),
        (("unfused", "unvectorised"), "codegen", "fusion"),
        (("unvectorised",), "codegen", "vectorised code"),
        (("eager_add", "eager_exp"), "codegen", ""),
        ((), "codegen", ""),
    ],
)
def test_a_lowering_is_at_fault_only_where_no_other_mends_it(case: Case, right: tuple[str, ...], stage: str, part: str) -> None:
    found = below(case, *right)
    assert (found.who, found.stage, found.part) == ("inductor", stage, part)
