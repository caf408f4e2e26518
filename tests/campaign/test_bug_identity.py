import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from corpus import casefile
from fuzz.bug_identity import Symptom, bug_relevant_rewrites, is_same_failure
from fuzz.campaign.investigation import Investigation
from fuzz.events import SuspicionOutcome
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import (
    BiasedErrors,
    DropoutMask,
    Failure,
    Process,
    ProcessLost,
    Raised,
    StateChange,
    StateChanged,
    Value,
    WrongValue,
    normalize,
)
from fuzz.protocol.rewrites import OtherConstant, WrongRewrite
from fuzz.subjects import get_spec
from generators.program.case import Case, LaterCall
from generators.program.features import features
from tests.check.test_sequences import products
from tests.fake_asker import FakeAsker


def symptom(
    verdict: Verdict,
    fired: Sequence[str] = (),
    features: Sequence[str] = (),
    subject: str = "passes",
    failure: Failure | None = None,
) -> Symptom:
    result = SubjectResult(subject, verdict, failure=failure, applied_rewrites=tuple(fired))
    return Symptom.of(result, frozenset(features))


MINIMAL = symptom(Verdict.WRONG_RESULT, ["_sfdp_pattern_5_inference"], ["op:softmax", "softmax_axis"])


@pytest.mark.parametrize(
    ("verdict", "fired", "features", "subject", "explained"),
    [
        (Verdict.WRONG_RESULT, ["_sfdp_pattern_5_inference"], ["op:softmax", "softmax_axis"], "passes", True),
        # More of everything, the pattern's other forms, and the same compiler's other subject.
        (
            Verdict.WRONG_RESULT,
            ["_sfdp_pattern_5_half_training", "pad_mm"],
            ["op:exp", "op:softmax", "softmax_axis"],
            "inductor",
            True,
        ),
        (Verdict.WRONG_GRADIENT, ["_sfdp_pattern_5_training"], ["op:softmax", "softmax_axis"], "passes", True),
        (Verdict.WRONG_RESULT, ["_sfdp_pattern_5_inference"], ["op:softmax"], "passes", False),
        (Verdict.WRONG_RESULT, ["_sfdp_pattern_15_inference"], ["op:softmax", "softmax_axis"], "passes", False),
        (Verdict.WRONG_RESULT, ["pad_mm"], ["op:softmax", "softmax_axis"], "passes", False),
        (Verdict.METADATA, ["_sfdp_pattern_5_inference"], ["op:softmax", "softmax_axis"], "passes", False),
        (Verdict.WRONG_RESULT, ["_sfdp_pattern_5_inference"], ["op:softmax", "softmax_axis"], "my.kernel:call", False),
    ],
)
def test_a_minimal_failure_explains_those_that_have_all_it_takes(
    verdict: Verdict, fired: list[str], features: list[str], subject: str, explained: bool
) -> None:
    assert MINIMAL.is_like(symptom(verdict, fired, features, subject)) is explained


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Raised("KeyError", "buf7"), Raised("KeyError", "buf12"), True),
        (Raised("RuntimeError", "size (3, 4) at 0x7f12"), Raised("RuntimeError", "size (17, 1, 5) at 0x11aa"), True),
        (Raised("CppCompileError", "/tmp/a/b/c.cpp: x"), Raised("CppCompileError", "/var/q/r.cpp: x"), True),
        (Raised("KeyError", "buf7"), Raised("IndexError", "buf7"), False),
        (Raised("AssertionError", "no layout"), Raised("AssertionError", "no stride"), False),
    ],
)
def test_errors_are_alike_when_they_differ_in_numbers_and_names_alone(one: Raised, other: Raised, alike: bool) -> None:
    a, b = (symptom(Verdict.COMPILE_ERROR, failure=failure) for failure in (one, other))
    assert a.is_like(b) is alike
    assert (one.key() == other.key()) is alike


@pytest.mark.parametrize(("subject", "alike"), [("aot_eager", True), ("export", True), ("triton", False)])
def test_an_error_of_tracing_is_one_under_all_compilers(subject: str, alike: bool) -> None:
    error = Raised("RuntimeError", "a view was created in no_grad mode")
    one, other = (symptom(Verdict.COMPILE_ERROR, subject=name, failure=error) for name in ("inductor", subject))
    assert one.is_like(other) is alike


def test_everyday_rewrites_dont_tell_bugs_apart() -> None:
    assert bug_relevant_rewrites(("pointless_view", "bmm_to_mm", "_sfdp_pattern_13_bs1_inference")) == {
        "sfdp_pattern_13"
    }


@pytest.mark.parametrize(("signal", "explained"), [("SIGSEGV", True), ("SIGFPE", False)])
def test_lost_processes_are_alike_when_they_were_lost_at_one_place(signal: str, explained: bool) -> None:
    here, there = (ProcessLost(Process.SIGNAL, name, "call (generated code)") for name in ("SIGSEGV", signal))
    minimal = symptom(Verdict.WORKER_DIED, ["pad_mm"], ["op:exp"], failure=here)
    assert minimal.is_like(symptom(Verdict.WORKER_DIED, [], ["op:tanh"], failure=there)) is explained


SCALE = (
    "aten::scaled_dot_product_attention() Expected a value of type 'Optional[float]' for argument 'scale' "
    "but instead found type '{}'."
)


def test_an_error_that_names_an_operation_of_aten_is_one_whatever_leads_to_it() -> None:
    minimal = symptom(
        Verdict.COMPILE_ERROR,
        ["_sfdp_pattern_5_inference"],
        ["op:where"],
        failure=Raised("RuntimeError", SCALE.format("FakeTensor")),
    )
    met = symptom(
        Verdict.COMPILE_ERROR,
        ["_sfdp_pattern_1_training"],
        ["mode:training"],
        failure=Raised("RuntimeError", SCALE.format("FunctionalTensor")),
    )
    assert minimal.is_like(met)
    assert not minimal.is_like(
        symptom(
            Verdict.COMPILE_ERROR, failure=Raised("RuntimeError", SCALE.replace("scale'", "mask'").format("FakeTensor"))
        )
    )
    assert not minimal.is_like(
        symptom(Verdict.RUNTIME_ERROR, failure=Raised("RuntimeError", SCALE.format("FakeTensor")))
    )
    # An error that names none may come from anywhere.
    anywhere = symptom(
        Verdict.COMPILE_ERROR,
        ["_sfdp_pattern_5_inference"],
        ["op:where"],
        failure=Raised("IndexError", "list index out of range"),
    )
    assert not anywhere.is_like(
        symptom(
            Verdict.COMPILE_ERROR, ["_sfdp_pattern_1_training"], failure=Raised("IndexError", "list index out of range")
        )
    )


def test_symbolic_sizes_are_sizes() -> None:
    assert normalize("batch2 tensor to be: [s0*s37, s37] but got: [s0, 1]") == normalize(
        "batch2 tensor to be: [6, 2] but got: [3, 1]"
    )


def test_an_error_about_another_operand_may_be_the_same_bug() -> None:
    first, second = (f"{name} is not correctly aligned (strideM)" for name in ("query", "key"))
    assert normalize(first) == normalize(second) != normalize("mask is not correctly aligned (strideM)")


@pytest.mark.parametrize(
    ("ops", "word"),
    [
        ("{name: z, op: masked_fill, args: [x, m], value: 0.0}", "fill:unusual"),
        ("{name: c, op: full}\n  - {name: z, op: where, args: [m, x, c]}", "fill:unusual"),
        ("{name: z, op: masked_fill, args: [x, m], value: -1.0e+4}", ""),
        ("{name: z, op: masked_fill, args: [x, m], value: min}", ""),
        ("{name: z, op: eq, args: [x], other: 1}", "compared:unusual"),
        ("{name: z, op: eq, args: [x], other: 0}", ""),
        ("{name: z, op: softmax, args: [x], dim: 2}", "softmax_axis"),
        ("{name: z, op: sum, args: [x], dim: 2}", ""),
        ("{name: z, op: unfold, args: [x], dim: 3, size: 2}", "layout:overlapping"),
    ],
)
def test_what_a_rewrite_may_overlook_is_a_feature(ops: str, word: str) -> None:
    case = casefile.loads(
        "case_format: 1\ndims: {B: 2}\ninputs:\n  x: {shape: [B, 3, 4, 5], dtype: float32, values: {seed: 0}}\n"
        f"  m: {{shape: [5], dtype: bool, values: {{kind: random, seed: 1}}}}\nops:\n  - {ops}\nreturns: [z]\n"
    )
    telling = {"fill:unusual", "compared:unusual", "softmax_axis", "layout:overlapping"}
    assert features(case) & telling == ({word} if word else set())


@pytest.mark.parametrize(
    ("turn", "unusual"),
    [
        ("permute, args: [x], dims: [0, 2, 1, 3]", False),
        ("permute, args: [x], dims: [0, -2, -1, 1]", False),
        ("transpose, args: [x], dim0: 1, dim1: 2", False),
        ("transpose, args: [x]", False),
        ("permute, args: [x], dims: [1, 2, 0, 3]", True),
        ("permute, args: [x], dims: [0, 3, 2, 1]", True),
        ("transpose, args: [x], dim0: 0, dim1: 2", True),
    ],
)
def test_axes_turned_as_no_attention_turns_them_are_a_feature(turn: str, *, unusual: bool) -> None:
    """Else a permutation that the matcher takes for its own would explain all that is wrong under its pattern."""
    case = casefile.loads(
        "case_format: 1\ndims: {B: 2}\ninputs:\n  x: {shape: [B, 3, 4, 5], dtype: float32, values: {seed: 0}}\n"
        f"ops:\n  - {{name: z, op: {turn}}}\nreturns: [z]\n"
    )
    assert ("axes:unusual" in features(case)) is unusual


def of_calls(*calls: LaterCall, number: int = 2) -> Symptom:
    failure = WrongValue(Value("output", 0, call=number), (0, 0), 1.0, 9.0, 4.0)
    return symptom(Verdict.WRONG_RESULT, features=[*features(products(calls=calls))], failure=failure)


def test_what_differs_between_calls_tells_bugs_apart_and_the_number_of_the_call_does_not() -> None:
    sizes, layouts = LaterCall(sizes=(("S", 5),)), LaterCall(layouts=(("x", "transposed"),))
    assert of_calls(sizes).is_like(of_calls(layouts, sizes, number=3))
    assert of_calls(sizes).is_like(of_calls(LaterCall(sizes=(("B", 3),))))
    assert not of_calls(sizes).is_like(of_calls(layouts))
    assert not of_calls(LaterCall()).is_like(of_calls(number=1))


@pytest.mark.parametrize(("needed", "subject"), [({"cpp.threads"}, "inductor_options"), (set[str](), "inductor")])
def test_a_finding_keeps_the_settings_that_it_needs(needed: set[str], subject: str) -> None:
    def judge(case: Case, subject: str) -> SubjectResult:
        fails = needed <= {*dict(case.settings)} and (get_spec(subject).options or not needed)
        return (
            SubjectResult(subject, Verdict.WRONG_RESULT, failure=VALUE) if fails else SubjectResult(subject, Verdict.OK)
        )

    case = replace(products(), settings=(("cpp.simdlen", 1), ("cpp.threads", 4)))
    public = ("inductor", "inductor_options")
    for suspect in ("inductor_options", "passes_options"):
        found = Investigation(
            case, SubjectResult(suspect, Verdict.WRONG_RESULT, failure=VALUE), public, FakeAsker(judge), bool
        ).run()
        assert (found.outcome, found.shown.subject) == (SuspicionOutcome.FINDING, subject)
        assert {*dict(found.case.settings)} == needed
    words = (symptom(Verdict.WRONG_RESULT, features=[*features(one)]) for one in (found.case, case, products()))
    known, tuned, plain = words
    assert known.is_like(tuned) and known.is_like(plain) is not bool(needed)


def test_what_is_written_and_how_tells_bugs_apart() -> None:
    words = [
        features(casefile.loads(WRITES.format(*how))) for how in (("add_", "x"), ("copy_", "x"), ("add_", "cache"))
    ]
    one, other, buffer = (symptom(Verdict.WRONG_RESULT, features=[*words]) for words in words)
    assert one.is_like(one)
    assert not (one.is_like(other) or other.is_like(one) or one.is_like(buffer) or buffer.is_like(one))


WRITES = """
case_format: 1
dims: {{B: 2}}
inputs:
  x: {{shape: [B], dtype: float32, values: {{seed: 0}}}}
  z: {{shape: [B], dtype: float32, values: {{seed: 2}}}}
  cache: {{shape: [B], dtype: float32, values: {{seed: 1}}, parameter: true, buffer: true}}
ops:
  - {{name: out, op: {}, args: [{}, z]}}
returns: [out]
"""


VALUE = WrongValue(Value.of_result("out"), (0, 0, 0, 0), 1.0, 9.0, 4.0)
BIASED = BiasedErrors(Value.of_result("out"), "scale", 1.1, 9.0, 32)
MASK = DropoutMask("keep_rate", 0.2)
WITHOUT = WrongValue(Value.of_result("out"), (0, 0, 0, 0), 1.0, 9.0, 4.0, without_dropout=True)


@pytest.mark.parametrize(("wanted", "plainer"), [*itertools.combinations([MASK, BIASED, VALUE], 2), (WITHOUT, VALUE)])
def test_a_failure_is_shrunk_to_a_plainer_one_and_never_to_a_less_plain_one(wanted: Failure, plainer: Failure) -> None:
    one, other = (SubjectResult("triton", Verdict.WRONG_RESULT, failure=failure) for failure in (wanted, plainer))
    assert is_same_failure(other, one, exact=True, attention_only=True)
    assert is_same_failure(one, one, exact=True, attention_only=True)
    assert not is_same_failure(one, other, exact=True, attention_only=True)


def test_a_failure_without_a_pattern_is_not_shrunk_to_that_of_a_wrong_pattern() -> None:
    def failing(number: int, **given: Any) -> SubjectResult:
        fired = (f"_sfdp_pattern_{number}_half_bs1_inference",) if number else ("pointless_view",)
        return SubjectResult("inductor", Verdict.WRONG_RESULT, applied_rewrites=fired, **given)

    wrong = failing(
        5,
        wrong_rewrites=(
            WrongRewrite("_sfdp_pattern_5_half_inference", constants=(OtherConstant("div", "1.0", "2.0"),)),
        ),
    )
    assert not is_same_failure(wrong, failing(0), exact=True)
    assert is_same_failure(wrong, failing(5), exact=True)
    right = failing(5, right_rewrites=("_sfdp_pattern_5_half_bs1_inference",))
    assert not is_same_failure(wrong, right, exact=True) and is_same_failure(failing(0), right, exact=True)
    assert is_same_failure(failing(0), failing(0), exact=True)


def test_a_changed_state_is_the_same_without_the_pattern_that_was_applied() -> None:
    def changing(state: str, *fired: str) -> SubjectResult:
        change = StateChanged((StateChange(state, "1", "2"),))
        return SubjectResult("inductor", Verdict.STATE_CHANGED, applied_rewrites=fired, failure=change)

    wanted = changing("torch.get_num_threads", "_sfdp_pattern_5_inference")
    assert is_same_failure(changing("torch.get_num_threads"), wanted, exact=True)
    assert not is_same_failure(changing("torch.is_grad_enabled"), wanted, exact=True)


def test_patterns_that_are_proven_right_have_no_part_in_what_a_kernel_gets_wrong() -> None:
    fired = ("_sfdp_pattern_5_inference",), ("_sfdp_pattern_14_inference", "_sfdp_pattern_18_inference")
    results = [
        SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=names, right_rewrites=names) for names in fired
    ]
    one, other = (Symptom.of(result, frozenset({"layout:overlapping"})) for result in results)
    assert one.is_like(other) and other.is_like(one) and one.signature == other.signature
