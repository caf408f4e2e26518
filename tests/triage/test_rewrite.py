"""Which rewrite is at fault, from controls whose verdicts are known."""

from dataclasses import replace
from typing import cast

import pytest

from fuzz.evaluator import Evaluator
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import ConstantDiffers, ConstantsNotCompared, PatternMatched
from generators.program.case import Case
from tests.triage.controls import Controls
from triage.attribution import rewrite
from triage.attribution.rewrite import OTHER_RESULT
from triage.attribution.root_cause import RootCause

WRONG = SubjectResult("passes", Verdict.WRONG_RESULT, "output 0: off", fired=("_sfdp_pattern_1_inference",))
MATCHED = (PatternMatched("_sfdp_pattern_1_inference"), PatternMatched("_sfdp_pattern_2_inference"))

NOT_COMPARED = ConstantsNotCompared("_sfdp_pattern_1_inference", why="sizes are symbolic")


def caused(case: Case, wrong: SubjectResult, *right: str, **given: SubjectResult) -> RootCause:
    recorded = SubjectResult("", wrong.verdict, observations=MATCHED)
    controls = Controls(wrong, "without_attention_patterns", *right, matches_recorded=recorded, **given)
    return rewrite.cause(case, "passes", wrong, cast("Evaluator", controls))


def test_constants_are_called_equal_only_where_they_were_compared(case: Case) -> None:
    equal = "All constants of the program are the pattern's."
    assert equal in caused(case, WRONG, "without_pattern 1").evidence
    for compared, why in (
        (SubjectResult("", Verdict.SKIPPED, "torch has no such name"), "the control ends with skipped, torch has no such name"),
        (SubjectResult("", Verdict.WORKER_DIED, "SIGSEGV"), "the control ends with worker died, SIGSEGV"),
        (SubjectResult("", Verdict.WRONG_RESULT, observations=(NOT_COMPARED,)),
         "_sfdp_pattern_1_inference: sizes are symbolic"),
    ):  # fmt: skip
        evidence = caused(case, WRONG, "without_pattern 1", constants_compared=compared).evidence
        assert equal not in evidence
        assert f"The constants of the program and the pattern could not be compared: {why}." in evidence


def test_a_control_without_a_verdict_blames_no_constants(case: Case) -> None:
    differs = ConstantDiffers("_sfdp_pattern_1_inference", "amax", program="[-2]", expected="[-1]")
    assert (
        caused(case, WRONG, constants_compared=SubjectResult("", Verdict.SKIPPED, observations=(differs,))).mechanism
        == OTHER_RESULT
    )


def test_a_pattern_is_said_to_show_it_alone_only_where_it_does(case: Case) -> None:
    assert (
        caused(case, WRONG, "only_pattern 1", "only_pattern 2").evidence[0]
        == "It goes away with the patterns of attention off; none shows it alone."
    )
    found = caused(case, WRONG, "only_pattern 1")
    assert found.part == "_sfdp_pattern_2"
    assert found.evidence[0] == "It goes away with the patterns of attention off; _sfdp_pattern_2 shows it alone."


@pytest.mark.parametrize("steps", [(), ("sdpa by_steps",)])
@pytest.mark.parametrize(
    "verdict", [Verdict.WORKER_DIED, Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.NONDETERMINISTIC]
)
def test_what_is_no_wrong_value_is_called_by_its_name(case: Case, verdict: Verdict, steps: tuple[str, ...]) -> None:
    found = caused(case, SubjectResult("passes", verdict, "", fired=WRONG.fired), "without_pattern 1", *steps)
    assert (found.part, found.mechanism) == ("_sfdp_pattern_1", verdict.value.replace("_", " "))


def test_a_fused_call_that_is_wrong_is_told_by_what_it_takes(case: Case) -> None:
    found = caused(case, WRONG, "without_pattern 1", "sdpa by_steps")
    assert (found.who, found.mechanism) == ("sdpa_flash", "wrong")
    assert (
        caused(case, WRONG, "without_pattern 1", "sdpa by_steps", "sdpa operands_copied").mechanism
        == "operands that are not contiguous"
    )


def test_a_change_that_the_pattern_does_not_take_says_nothing_of_the_fused_call(case: Case) -> None:
    right = SubjectResult("passes", Verdict.OK, fired=WRONG.fired)
    found = caused(case, WRONG, "without_pattern 1", "sdpa by_steps", passes=right)
    assert (found.mechanism, found.evidence[-1]) == (
        "operands that are not contiguous",
        "It goes away with contiguous copies of the operands.",
    )
    found = caused(case, WRONG, "without_pattern 1", "sdpa by_steps", passes=replace(right, fired=()))
    assert (found.mechanism, found.evidence[-1]) == ("wrong", "The fused call is that of _sfdp_pattern_1.")
