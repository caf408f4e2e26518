"""Which rewrite is at fault, from controls whose verdicts are known."""

from dataclasses import replace
from typing import cast

import pytest

from fuzz.evaluator import Evaluator
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.codec import decode, encode
from fuzz.protocol.controls import Control, NotMeasured, PassDiffers, PatternMatched
from fuzz.protocol.failures import Failure, FormDiffers, Raised
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.case import Case
from tests.triage.controls import Controls
from triage.attribution.experiments import Study, mechanism_of
from triage.attribution.rewrite import find_rewrite_cause
from triage.attribution.root_cause import (
    CaseChange,
    Compared,
    Experiment,
    FusedCall,
    Measured,
    Mechanism,
    MechanismKind,
    RootCause,
)

K, M = MechanismKind, Mechanism
WRONG = SubjectResult("passes", Verdict.WRONG_RESULT, fired=("_sfdp_pattern_1_inference",))
PROVEN = replace(WRONG, right_rewrites=WRONG.fired)
MATCHED = (PatternMatched("_sfdp_pattern_1_inference"), PatternMatched("_sfdp_pattern_2_inference"))


def caused(case: Case, wrong: SubjectResult, *right: str, **given: SubjectResult) -> RootCause:
    recorded = SubjectResult("", wrong.verdict, observations=MATCHED)
    controls = Controls(wrong, "without_attention_patterns", *right, matches_recorded=recorded, **given)
    return find_rewrite_cause(Study(cast("Evaluator", controls), case, "passes", wrong))


DROPPED = PassDiffers("post_grad_passes", "reorder", "", "mul", "aten.mul", ("aten.mul",), (), 0.5)


@pytest.mark.parametrize(
    ("first", "right", "part", "confirmed"),
    [
        (DROPPED, "without_pass reorder", "reorder", True),
        (DROPPED, "", "reorder", False),
        (replace(DROPPED, rewrite="pointless"), "without_rewrite pointless", "pointless", True),
        (NotMeasured("passes", "the graph draws random numbers"), "", "", False),
    ],
)
def test_a_pass_is_at_fault_that_was_seen_to_change_a_value(
    case: Case, first: PassDiffers | NotMeasured, right: str, part: str, confirmed: bool
) -> None:
    seen = SubjectResult("passes", WRONG.verdict, observations=(first,))
    controls = Controls(WRONG, right, passes_compared=seen)
    found = find_rewrite_cause(Study(cast("Evaluator", controls), case, "passes", WRONG))
    assert (found.stage, found.part, found.evidence[0]) == ("graph_passes", part, Compared(first))
    assert any(isinstance(one, Experiment) and one.passes for one in found.evidence) == confirmed
    assert decode(RootCause, encode(found)) == found


def test_where_no_pattern_is_enough_to_leave_out_each_is_tried_alone(case: Case) -> None:
    found = caused(case, WRONG, "only_pattern 1")
    assert found.part == "_sfdp_pattern_2"
    assert [(one.control, one.passes) for one in found.evidence[:3] if isinstance(one, Experiment)] == [
        (Control("without_attention_patterns"), True),
        (Control("only_pattern", "1"), True),
        (Control("only_pattern", "2"), False),
    ]


@pytest.mark.parametrize("right", [(), WRONG.fired])
@pytest.mark.parametrize(
    "verdict", [Verdict.WORKER_DIED, Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.NONDETERMINISTIC]
)
def test_what_is_no_wrong_value_is_called_by_its_name(case: Case, verdict: Verdict, right: tuple[str, ...]) -> None:
    failure = SubjectResult("passes", verdict, fired=WRONG.fired, right_rewrites=right)
    found = caused(case, failure, "without_pattern 1")
    assert (found.part, found.mechanism.name) == ("_sfdp_pattern_1", MechanismKind.of(verdict))


@pytest.mark.parametrize(
    ("wrong", "mechanism"),
    [
        (WrongRewrite("_sfdp_pattern_1_half", constants=("amax [1] for [-1]",)), M(K.CONSTANTS_IGNORED)),
        (WrongRewrite("_sfdp_pattern_1_half", constants=("strides",)), M(K.STRIDES)),
        (WrongRewrite("_sfdp_pattern_1_half"), M(K.OTHER_RESULT)),
        (
            WrongRewrite("_sfdp_pattern_1_half", {"mask": ("all 1",)}, {"mask": ("all 2", "one 2 in 0")}),
            M(K.OPERANDS, "some values of mask"),
        ),
    ],
)
def test_what_is_proven_needs_no_experiment(case: Case, wrong: WrongRewrite, mechanism: Mechanism) -> None:
    controls = Controls(WRONG)
    study = Study(cast("Evaluator", controls), case, "passes", replace(WRONG, rewrites=(wrong,)))
    found = find_rewrite_cause(study)
    assert (found.part, found.mechanism, found.evidence) == ("_sfdp_pattern_1", mechanism, (Measured(wrong),))
    assert controls.asked == []


def test_a_fused_call_that_is_wrong_is_found_with_what_it_takes(case: Case) -> None:
    found = caused(case, PROVEN)
    assert (found.who, found.mechanism.name) == ("sdpa_flash", MechanismKind.WRONG)
    found = caused(case, PROVEN, "sdpa operands_copied")
    assert found.mechanism.name is MechanismKind.NOT_CONTIGUOUS


def test_a_change_after_which_the_pattern_does_not_match_says_nothing_of_the_fused_call(case: Case) -> None:
    right = SubjectResult("passes", Verdict.OK, fired=WRONG.fired)
    found = caused(case, PROVEN, passes=right)
    assert found.mechanism.name is MechanismKind.NOT_CONTIGUOUS
    assert found.evidence[-1] == Experiment(True, change=CaseChange.CONTIGUOUS)
    found = caused(case, PROVEN, passes=replace(right, fired=()))
    assert (found.mechanism.name, found.evidence[-1]) == (MechanismKind.WRONG, FusedCall("_sfdp_pattern_1"))


@pytest.mark.parametrize(
    ("verdict", "failure", "mechanism"),
    [
        (Verdict.METADATA, FormDiffers("strides", "(1,)", "(2,)"), Mechanism(MechanismKind.STRIDES)),
        (Verdict.METADATA, FormDiffers("dtype", "a", "b"), Mechanism(MechanismKind.FORM)),
        (Verdict.RUNTIME_ERROR, Raised("Error", "expected scalar type Half"), Mechanism(MechanismKind.TWO_DTYPES)),
        (
            Verdict.COMPILE_ERROR,
            Raised("ValueError", "size 3 of a FakeTensor"),
            Mechanism(MechanismKind.COMPILING_RAISES, "ValueError: size N of a Tensor"),
        ),
    ],
)  # fmt: skip
def test_a_mechanism_is_told_by_the_failures_fields(verdict: Verdict, failure: Failure, mechanism: Mechanism) -> None:
    assert mechanism_of(SubjectResult("passes", verdict, failure=failure)) == mechanism
