"""Which rewrite is at fault, from experiments whose outcomes are known."""

from dataclasses import replace
from typing import cast

import pytest

from corpus import casefile
from corpus.causes import Mechanism, MechanismKind, details
from corpus.entry import Entry, Found
from fuzz.ask.evaluator import Evaluator
from fuzz.attribution.attribute import attribute, find_rewrite_cause
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, mechanism_of
from fuzz.experiments import Outcome, Trial, Tried
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Failure, FaultyOperation, FormDiffers, Raised, Value, WrongValue
from fuzz.protocol.rewrites import OtherConstant, WrongRewrite
from generators.program.case import Case
from generators.records import decode, encode
from tests.triage.fake_evaluator import FakeEvaluator, limit_steps
from tests.triage.test_golden import SEEN_AS

K, M = MechanismKind, Mechanism
WRONG = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_1_inference",))
PROVEN = replace(WRONG, right_rewrites=WRONG.applied_rewrites)
WHOLE = casefile.loads(SEEN_AS)
PASSES_RIGHT = SubjectResult("passes", Verdict.OK, applied_rewrites=WRONG.applied_rewrites)


def caused(case: Case, wrong: SubjectResult, step: str, **given: SubjectResult) -> RootCause:
    evaluator = FakeEvaluator(wrong, **limit_steps(wrong, "pass", 9, 5, step), **given)
    return attribute_rewrite(evaluator, case, wrong)


def attribute_rewrite(evaluator: FakeEvaluator, case: Case, wrong: SubjectResult) -> RootCause:
    return find_rewrite_cause(Study(cast("Evaluator", evaluator), Entry(case), "passes", wrong))


@pytest.mark.parametrize(
    ("step", "stage", "part"),
    [
        ("reorder_for_locality", "graph_passes", "reorder_for_locality"),
        ("_sfdp_pattern_1_inference", "joint_graph_passes", "_sfdp_pattern_1"),
    ],
)
def test_the_first_step_with_which_it_fails_is_at_fault(case: Case, step: str, stage: str, part: str) -> None:
    found = caused(case, WRONG, step)
    assert (found.stage, found.part, found.evidence) == (stage, part, (Tried("pass", step, Outcome.PASSES),))
    assert decode(RootCause, encode(found)) == found


class Shorter(FakeEvaluator):
    """The program cut after `at` gives another form; with the pass left out it is right if `by_pass`."""

    def __init__(self, wrong: SubjectResult, at: str, aspect: str, *, by_pass: bool, **given: SubjectResult) -> None:
        super().__init__(wrong, **given)
        self.at, self.by_pass = at, by_pass
        self.form = SubjectResult("", Verdict.METADATA, failure=FormDiffers(aspect, "a", "b", Value("output", 0)))

    def judge(self, _case: Case, subject: str, *trials: Trial) -> SubjectResult:
        if _case.returns == (WHOLE.returns[0],):
            return super().judge(_case, subject, *trials)
        is_wrong = _case.returns == (self.at,) and not (trials and self.by_pass)
        return self.form if is_wrong else SubjectResult(subject, Verdict.OK)


@pytest.mark.parametrize(
    ("at", "aspect", "by_pass", "kind"),
    [
        ("sums", "dtype", True, K.FORM),
        ("sums", "memory", True, K.COMPILING_RAISES),  # only results must not share memory
        ("sums", "dtype", False, K.COMPILING_RAISES),
        ("", "dtype", True, K.COMPILING_RAISES),
    ],
)
def test_an_error_of_what_reads_a_wrong_form_has_the_cause_of_the_form(
    at: str, aspect: str, kind: MechanismKind, *, by_pass: bool
) -> None:
    raised = SubjectResult("passes", Verdict.COMPILE_ERROR, failure=Raised("RuntimeError", "expected bool"))
    steps = limit_steps(raised, "pass", 9, 5, "scatter_upon_const_tensor")
    found = attribute_rewrite(Shorter(raised, at, aspect, by_pass=by_pass, **steps), WHOLE, raised)
    assert (found.part, found.mechanism.kind) == ("scatter_upon_const_tensor", kind)
    assert (Tried("shorter", "sums", Outcome.FAILS_OTHERWISE) in found.evidence) is (kind is K.FORM)


def test_a_rewrite_that_changes_strides_alone_is_no_cause_of_wrong_values(case: Case) -> None:
    strides = WrongRewrite("_sfdp_pattern_1_inference", strides=True)
    assert (
        caused(case, replace(WRONG, wrong_rewrites=(strides,)), "reorder_for_locality").part == "reorder_for_locality"
    )
    form = SubjectResult("passes", Verdict.METADATA, applied_rewrites=WRONG.applied_rewrites, wrong_rewrites=(strides,))
    assert attribute_rewrite(FakeEvaluator(form), case, form).mechanism == M(K.STRIDES)


def test_what_fails_without_any_pass_is_left_open(case: Case) -> None:
    evaluator = FakeEvaluator(WRONG, **limit_steps(WRONG, "pass", 9, 0))
    found = attribute_rewrite(evaluator, case, WRONG)
    assert (found.stage, found.part, found.evidence) == ("graph_passes", "", ())


@pytest.mark.parametrize("right", [(), WRONG.applied_rewrites])
@pytest.mark.parametrize(
    "verdict", [Verdict.WORKER_DIED, Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.NONDETERMINISTIC]
)
def test_what_is_no_wrong_value_is_called_by_its_name(case: Case, verdict: Verdict, right: tuple[str, ...]) -> None:
    failure = SubjectResult("passes", verdict, applied_rewrites=WRONG.applied_rewrites, right_rewrites=right)
    found = caused(case, failure, "_sfdp_pattern_1_inference")
    assert (found.part, found.mechanism.kind) == ("_sfdp_pattern_1", MechanismKind(verdict))


@pytest.mark.parametrize(
    ("wrong", "mechanism"),
    [
        (WrongRewrite("_sfdp_pattern_1_half", constants=(OtherConstant("amax", "1", "-1"),)), M(K.CONSTANTS_IGNORED)),
        (WrongRewrite("_sfdp_pattern_1_half"), M(K.OTHER_RESULT)),
        (
            WrongRewrite("_sfdp_pattern_1_half", {"mask": ("all 1",)}, {"mask": ("all 2", "one 2 in 0")}),
            M(K.OPERANDS, details(operands="mask")),
        ),
    ],
)
def test_what_is_proven_needs_no_experiment(case: Case, wrong: WrongRewrite, mechanism: Mechanism) -> None:
    evaluator = FakeEvaluator(WRONG)
    found = attribute_rewrite(evaluator, case, replace(WRONG, wrong_rewrites=(wrong,)))
    assert (found.part, found.mechanism, found.rewrites) == ("_sfdp_pattern_1", mechanism, (wrong,))
    assert found.evidence == (Tried("exact", "_sfdp_pattern_1_half", Outcome.FAILS_ALIKE),)
    assert evaluator.asked == []


def test_a_wrong_operation_is_one_bug_whichever_rewrite_calls_it() -> None:
    one, other = (WrongRewrite(f"_sfdp_pattern_{n}", faulty=FaultyOperation("aten.bmm", 1.0, 2.0)) for n in (1, 5))
    assert one.is_same_bug(other) and one.evidence_label == "aten.bmm"
    assert not one.is_same_bug(replace(one, faulty=FaultyOperation("aten.mm", 1.0, 2.0)))
    assert not one.is_same_bug(replace(one, faulty=None)) and not replace(one, faulty=None).is_same_bug(one)


def test_a_fused_call_that_is_wrong_is_found_with_what_it_takes(case: Case) -> None:
    found = caused(case, PROVEN, "_sfdp_pattern_1_inference")
    assert (found.who, found.mechanism.kind) == ("sdpa_flash", MechanismKind.WRONG)


def test_a_change_after_which_the_pattern_does_not_match_says_nothing_of_the_fused_call(case: Case) -> None:
    case = replace(case, inputs=tuple(replace(item, layout="transposed") for item in case.inputs))
    found = caused(case, PROVEN, "_sfdp_pattern_1_inference", passes=PASSES_RIGHT)
    assert found.mechanism.kind is MechanismKind.NOT_CONTIGUOUS
    assert found.evidence[-1] == Tried("contiguous", "", Outcome.PASSES)
    found = caused(case, PROVEN, "_sfdp_pattern_1_inference", passes=replace(PASSES_RIGHT, applied_rewrites=()))
    assert (found.mechanism.kind, found.evidence[-1]) == (
        MechanismKind.WRONG,
        Tried("exact", "_sfdp_pattern_1", Outcome.PASSES),
    )


@pytest.mark.parametrize(
    ("verdict", "failure", "mechanism"),
    [
        (Verdict.METADATA, FormDiffers("strides", "(1,)", "(2,)"), Mechanism(MechanismKind.STRIDES)),
        (Verdict.METADATA, FormDiffers("dtype", "a", "b"), Mechanism(MechanismKind.FORM)),
        (Verdict.RUNTIME_ERROR, Raised("Error", "expected scalar type Half"), Mechanism(MechanismKind.TWO_DTYPES)),
        (
            Verdict.COMPILE_ERROR,
            Raised("ValueError", "size 3 of a FakeTensor"),
            Mechanism(MechanismKind.COMPILING_RAISES, details(error="ValueError: size N of a Tensor")),
        ),
    ],
)  # fmt: skip
def test_a_mechanism_is_told_by_the_failures_fields(verdict: Verdict, failure: Failure, mechanism: Mechanism) -> None:
    assert mechanism_of(SubjectResult("passes", verdict, failure=failure)) == mechanism


@pytest.mark.parametrize(("torch", "asked"), [("2.13.0", 0), ("2.12.0", 1)])
def test_a_rewrite_that_this_torch_was_seen_to_get_wrong_is_not_run_again(case: Case, torch: str, asked: int) -> None:
    proven = WrongRewrite("_sfdp_pattern_1_half", constants=(OtherConstant("amax", "1", "-1"),))
    failure = WrongValue(Value("output", 0), (0,), 1.0, 9.0, 4.0)
    found = Found(
        "wrong_result", "inductor", torch=torch, device="cpu", failure=encode(failure), rewrites=(encode(proven),)
    )
    right = ("eager", "dynamo", "aot_eager", "aot_eager_decomp_partition")
    evaluator = FakeEvaluator(replace(WRONG, wrong_rewrites=(proven,)), *right)
    cause = attribute(Entry(case, found=found), cast("Evaluator", evaluator))
    assert (cause.part, cause.rewrites) == ("_sfdp_pattern_1", (proven,))
    assert evaluator.asked.count("passes") == asked and "inductor" not in evaluator.asked
