"""The experiments that decide on a known bug, and on the rewrite at fault, where outcomes are known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from corpus import casefile
from corpus.causes import Details, Mechanism, MechanismKind, Stage, details
from corpus.entry import Entry, Expectation, Found
from fuzz.attribution.attribute import attribute, find_rewrite_cause
from fuzz.attribution.decide import decides, find_deciding
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, mechanism_of
from fuzz.experiments import Outcome, Trial, Tried
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Failure, FaultyOperation, FormDiffers, Raised, Value, WrongValue
from fuzz.protocol.rewrites import OtherConstant, WrongRewrite
from generators.program.case import Case, LaterCall
from generators.program.ops import make_op
from generators.program.type_check import attributes
from generators.records import decode, encode
from tests.campaign.fakes import case
from tests.fake_asker import FakeEvaluator, limit_steps
from tests.triage.test_golden import SEEN_AS

Fails = Callable[[Case, str, tuple[Trial, ...]], bool]
WRONG = SubjectResult("passes", Verdict.WRONG_RESULT)
PASS = (("pass", ("fold",)),)


class RuledEvaluator(FakeEvaluator):
    """A case fails if the rule says so."""

    def __init__(self, fails: Fails) -> None:
        super().__init__(WRONG)
        self.fails = fails

    def judge(self, case: Case, subject: str, *trials: Trial) -> SubjectResult:
        return SubjectResult(subject, Verdict.WRONG_RESULT if self.fails(case, subject, trials) else Verdict.OK)


def study(fails: Fails, failing: Case, result: SubjectResult = WRONG) -> Study:
    evaluator: Any = RuledEvaluator(fails)
    return Study(evaluator, Entry(failing, expect=Expectation("known", subject=result.subject)), result.subject, result)


def has(kind: str) -> Callable[[Case], bool]:
    return lambda one: kind in {op.kind for op in one.ops}


def test_a_step_that_is_left_out_by_name_decides() -> None:
    mine = study(lambda _case, _subject, trials: Trial("pass", "fold") not in trials, case("relu"))
    others = study(lambda _case, _subject, _trials: True, case("relu"))
    assert decides(PASS, mine) and not decides(PASS, others)
    assert not decides((), mine)


def test_each_row_must_flip_and_of_its_arguments_any() -> None:
    decided_by: Details = (("dropped", ("log", "relu")), ("passes", ()))
    relu, other = has("relu"), has("exp")
    assert decides(decided_by, study(lambda one, _subject, _trials: relu(one), case("relu", "exp")))
    assert not decides(decided_by, study(lambda one, _subject, _trials: other(one), case("relu", "exp")))
    in_code = SubjectResult("inductor", Verdict.WRONG_RESULT)
    generated = study(lambda one, subject, _: relu(one) and subject == "inductor", case("relu", "exp"), in_code)
    assert not decides(decided_by, generated)


def test_a_failure_that_does_not_repeat_is_not_known() -> None:
    assert not decides(PASS, study(lambda _case, _subject, _trials: False, case("relu")))


def test_a_copy_in_place_of_a_write_explains_no_fault_of_later_calls() -> None:
    """Copies mend both. Only the failure of a later call is gone where each call is made of a module of its own."""
    written = replace(
        case("relu"), ops=(make_op("out", "mul_", ["x"], {"other": 3.0}),), returns=("out",), contracts=()
    )
    twice = replace(written, calls=(LaterCall(),))

    def fails(one: Case, _subject: str, _trials: tuple[Trial, ...]) -> bool:
        return len(one.ops) == 1  # no copy is made

    def fails_later(one: Case, _subject: str, _trials: tuple[Trial, ...]) -> bool:
        return len(one.ops) == 1 and bool(one.calls)

    assert decides((("written_apart", ()),), study(fails, written))
    assert decides((("written_apart", ()),), study(fails, twice))
    assert not decides((("written_apart", ()),), study(fails_later, twice))
    assert decides((("calls_apart", ()),), study(fails_later, twice))
    assert not decides((("calls_apart", ()),), study(fails, twice))


def test_measurements_must_be_equal() -> None:
    known = WrongRewrite("_sfdp_pattern_15", {"attn_mask": ("all 1",)}, {"attn_mask": ("all 0",)})
    other = WrongRewrite("_sfdp_pattern_15", {"attn_mask": ("all 0",)}, {"attn_mask": ("all 1",)})
    for measured, is_it in (((known,), True), ((other,), False), ((), False)):
        result = SubjectResult("passes", Verdict.WRONG_RESULT, wrong_rewrites=measured)
        assert decides((("exact", ()),), study(lambda *_: True, case("relu"), result), (known,)) is is_it


def test_the_experiments_of_a_cause_flip_on_its_minimal_case() -> None:
    step = RootCause("inductor", Stage.GRAPH_PASSES, "fold", Mechanism(MechanismKind.WRONG_RESULT))
    assert find_deciding(study(lambda *_: True, case("relu")), step) == PASS
    stage = RootCause("aot", Stage.DYNAMO, "", Mechanism(MechanismKind.OTHER_VALUES))
    relu = has("relu")
    found = find_deciding(study(lambda one, _subject, _trials: relu(one), case("exp", "relu", "exp")), stage)
    assert found == (("aot_eager", ()), ("dropped", ("relu",)))
    assert find_deciding(study(lambda *_: True, case("exp", "relu")), stage) == ()
    copied = study(
        lambda one, _subject, _trials: not has("clone")(one), case("relu"), replace(WRONG, verdict=Verdict.METADATA)
    )
    assert find_deciding(copied, stage) == (("aot_eager", ()), ("contiguous", ("relu",)))


def test_an_offset_of_0_decides_between_bugs_of_as_strided() -> None:
    read = make_op("out", "as_strided", ["x"], {"sizes": (1,), "strides": (1,)})
    strided = replace(case(), ops=(read,), returns=("out",))
    mine = study(lambda one, _subject, _trials: attributes(one.ops[0])["offset"] is None, strided)
    others = study(lambda _case, _subject, _trials: True, strided)
    decided_by: Details = (("offset_given", ()),)
    assert decides(decided_by, mine) and not decides(decided_by, others)


K, M = MechanismKind, Mechanism
MISCOMPUTED = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_1_inference",))
PROVEN = replace(MISCOMPUTED, right_rewrites=MISCOMPUTED.applied_rewrites)
WHOLE = casefile.loads(SEEN_AS)
PASSES_RIGHT = SubjectResult("passes", Verdict.OK, applied_rewrites=MISCOMPUTED.applied_rewrites)


def caused(case: Case, wrong: SubjectResult, step: str, **given: SubjectResult) -> RootCause:
    evaluator = FakeEvaluator(wrong, **limit_steps(wrong, "pass", 9, 5, step), **given)
    return attribute_rewrite(evaluator, case, wrong)


def attribute_rewrite(evaluator: FakeEvaluator, case: Case, wrong: SubjectResult) -> RootCause:
    return find_rewrite_cause(Study(evaluator, Entry(case), "passes", wrong))


@pytest.mark.parametrize(
    ("step", "stage", "part"),
    [
        ("reorder_for_locality", "graph_passes", "reorder_for_locality"),
        ("_sfdp_pattern_1_inference", "joint_graph_passes", "_sfdp_pattern_1"),
    ],
)
def test_the_first_step_with_which_it_fails_is_at_fault(case: Case, step: str, stage: str, part: str) -> None:
    found = caused(case, MISCOMPUTED, step)
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
        caused(case, replace(MISCOMPUTED, wrong_rewrites=(strides,)), "reorder_for_locality").part
        == "reorder_for_locality"
    )
    form = SubjectResult(
        "passes", Verdict.METADATA, applied_rewrites=MISCOMPUTED.applied_rewrites, wrong_rewrites=(strides,)
    )
    assert attribute_rewrite(FakeEvaluator(form), case, form).mechanism == M(K.STRIDES)


def test_what_fails_without_any_pass_is_left_open(case: Case) -> None:
    evaluator = FakeEvaluator(MISCOMPUTED, **limit_steps(MISCOMPUTED, "pass", 9, 0))
    found = attribute_rewrite(evaluator, case, MISCOMPUTED)
    assert (found.stage, found.part, found.evidence) == ("graph_passes", "", ())


@pytest.mark.parametrize("right", [(), MISCOMPUTED.applied_rewrites])
@pytest.mark.parametrize(
    "verdict", [Verdict.WORKER_DIED, Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.NONDETERMINISTIC]
)
def test_what_is_no_wrong_value_is_called_by_its_name(case: Case, verdict: Verdict, right: tuple[str, ...]) -> None:
    failure = SubjectResult("passes", verdict, applied_rewrites=MISCOMPUTED.applied_rewrites, right_rewrites=right)
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
    evaluator = FakeEvaluator(MISCOMPUTED)
    found = attribute_rewrite(evaluator, case, replace(MISCOMPUTED, wrong_rewrites=(wrong,)))
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
    evaluator = FakeEvaluator(replace(MISCOMPUTED, wrong_rewrites=(proven,)), *right)
    cause = attribute(Entry(case, found=found), evaluator)
    assert (cause.part, cause.rewrites) == ("_sfdp_pattern_1", (proven,))
    assert evaluator.asked.count("passes") == asked and "inductor" not in evaluator.asked
