"""The change that makes a wrong call right tells bugs apart; defects of a state show in that state alone."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from benchmarks.defects import planted
from benchmarks.plain import dense
from corpus.casefile import dumps, loads
from corpus.shrink import shrink
from fuzz.ask.question import Question, build_check
from fuzz.bug_identity import Symptom, is_same_failure
from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.settings import configure_torch
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Failure, Value, WrongValue
from fuzz.protocol.rewrites import CALL, WrongRewrite
from generators.program.case import Case, Values
from generators.program.edits import map_inputs
from generators.program.emit import source as emit
from generators.program.simplicity import sort_key
from tests.check.in_process import is_failure, run_subject, source
from tests.check.planted_attention import right


def with_three_bugs(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: str | None = None
) -> Tensor:
    """Ignores `causal`, all but the first 16 features of q, and a mask."""
    return right(q[..., :16], k[..., :16], v, scale=scale)


CALLS: dict[str, dict[str, Any]] = {
    "causal": {"call": 'attend(q, k, v, scale=0.25, causal="top_left")'},
    "mask": {"call": "attend(q, k, v, scale=0.25, mask=torch.ones(S, S, dtype=torch.bool).tril())"},
    "head_dim": {"call": "attend(q, k, v, scale=0.25)", "dims": "2, 4, 17, 24"},
}
PLAIN = "return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"
CAUSAL = (
    "s = q @ k.mT * 0.25; return s.masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ v"
)


def run(name: str, *, larger: bool = False) -> SubjectResult:
    given = CALLS[name]
    dims = given.get("dims", "2, 4, 17, 16")
    if larger:
        dims = dims.replace("2, 4, 17", "1, 2, 40")
    text = source(*(CAUSAL if name != "head_dim" else PLAIN).split("; "), dims=dims)
    return run_subject(with_three_bugs, text=text, attention_stub=source(f"return {given['call']}", dims=dims))


def symptom(result: SubjectResult) -> Symptom:
    return Symptom.of(result, frozenset(), attention_only=True)


@pytest.mark.parametrize("name", CALLS)
def test_what_makes_a_wrong_call_right_is_its_cause(name: str) -> None:
    result = run(name)
    assert result.verdict is Verdict.WRONG_RESULT
    assert [(one.pattern, one.evidence_label) for one in result.wrong_rewrites] == [(CALL, name)]


def test_three_bugs_of_one_function_explain_themselves_and_no_other() -> None:
    found = {name: symptom(run(name)) for name in CALLS}
    others = {name: symptom(run(name, larger=True)) for name in CALLS}
    for one in CALLS:
        assert [name for name in CALLS if found[one].is_like(others[name])] == [one]


def test_a_call_that_shows_several_bugs_may_shrink_to_any_of_them() -> None:
    one, other = run("causal"), run("head_dim")
    several = replace(other, wrong_rewrites=(WrongRewrite(CALL, wrong={"causal": ("dropped",), "head_dim": ("16",)}),))
    assert is_same_failure(other, several, exact=True, attention_only=True)
    assert not is_same_failure(other, one, exact=True, attention_only=True)


def wrong_when_long(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: str | None = None
) -> Tensor:
    """Ignores mask and `causal` from 33 keys on."""
    return right(q, k, v, scale=scale) if k.shape[2] > 32 else right(q, k, v, scale=scale, mask=mask, causal=causal)


def test_two_bugs_of_long_calls_are_told_apart_by_the_option_each_needs() -> None:
    dims = "1, 2, 40, 16"
    text = source(*CAUSAL.split("; "), dims=dims)
    stubs = {name: source(f"return {CALLS[name]['call']}", dims=dims) for name in ("causal", "mask")}
    found = {name: run_subject(wrong_when_long, text=text, attention_stub=stub) for name, stub in stubs.items()}
    assert {name: set(result.wrong_rewrites[0].right) for name, result in found.items()} == {
        "causal": {"causal", "kv_len"},
        "mask": {"mask", "kv_len"},
    }
    assert not symptom(found["causal"]).is_like(symptom(found["mask"]))
    assert not symptom(found["mask"]).is_like(symptom(found["causal"]))


def without_gradient_of_bias(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None = None, causal: str | None = None
) -> Tensor:
    """Causal calls give the bias no gradient."""
    if bias is not None and causal is not None:
        bias = bias.clone()
        if bias.requires_grad:
            bias.register_hook(lambda gradient: gradient * 0.0)  # type: ignore[no-untyped-call]
    return right(q, k, v, scale=scale, bias=bias, causal=causal)


def without_gradient_of_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None) -> Tensor:
    """Causal calls give keys no gradient."""
    return right(q, k.detach() if causal is not None else k, v, scale=scale, causal=causal)


def test_a_wrong_gradient_of_the_bias_is_measured_too() -> None:
    given = {"dims": "1, 2, 40, 16", "extra": "torch.randn(S, S, generator=rng(3))"}
    text = source("s = q @ k.mT * 0.25 + rest[0]", *CAUSAL.split("; ")[1:], **given)
    stub = source('return attend(q, k, v, scale=0.25, bias=rest[0], causal="top_left")', **given)
    result = run_subject(without_gradient_of_bias, text=text, attention_stub=stub, training=True)
    assert result.value == Value.of_result("dbias")
    assert set(result.wrong_rewrites[0].right) == {"bias", "causal"}


def test_a_lost_gradient_is_measured_too() -> None:
    dims = "1, 2, 40, 16"
    text, stub = source(*CAUSAL.split("; "), dims=dims), source(f"return {CALLS['causal']['call']}", dims=dims)
    result = run_subject(without_gradient_of_keys, text=text, attention_stub=stub, training=True)
    assert result.value == Value.of_result("dk")
    assert set(result.wrong_rewrites[0].right) == {"causal"}


BIASED = {
    # An additive mask of [S, S] is read as if it had an axis for each head.
    "mask": "attend(q, k, v, scale=0.25, mask=torch.ones(S, S, dtype=torch.bool).tril())",
    "layout": "attend(q, k, v.mT.contiguous().mT, scale=0.25)",
}


def with_stride_bugs(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """Ignores a mask that is not expanded, and reads v as if it were contiguous."""
    v = v.as_strided(v.shape, v.new_empty(v.shape).contiguous().stride(), v.storage_offset())
    kept = mask if mask is not None and mask.dim() == q.dim() else None
    return right(q, k, v, scale=scale, mask=kept)


@pytest.mark.parametrize(("name", "change"), [("mask", "expanded"), ("layout", "contiguous")])
def test_where_tensors_lie_in_memory_is_a_cause_of_its_own(name: str, change: str) -> None:
    text = source(*(CAUSAL if name == "mask" else PLAIN).split("; "))
    result = run_subject(with_stride_bugs, text=text, attention_stub=source(f"return {BIASED[name]}"))
    (found,) = result.wrong_rewrites
    assert change in found.right[name]
    inverted = replace(found, right={"mask": ("dropped",)}, wrong={"mask": ("expanded",)})
    assert not found.is_same_bug(inverted)
    assert not inverted.is_same_bug(found)


def test_a_bug_of_the_output_explains_none_of_gradients_alone() -> None:
    def fail(*names: str) -> Symptom:
        value, *also = map(Value.of_result, names)
        verdict = Verdict.WRONG_GRADIENT if value.is_gradient else Verdict.WRONG_RESULT
        failure = WrongValue(value, (0, 0, 0, 0), 1.0, 9.0, 4.0, also=tuple(also))
        return symptom(SubjectResult("module:function", verdict, failure=failure))

    forward, keys, values = fail("out", "dq"), fail("dk", "dq"), fail("dv")
    assert forward.is_like(fail("out"))
    assert not any((forward.is_like(keys), keys.is_like(forward), keys.is_like(values)))
    assert keys.is_like(fail("dv", "dk"))


def fail_by(failure: Failure, *features: str) -> Symptom:
    result = SubjectResult("module:function", Verdict.WRONG_RESULT, failure=failure)
    return Symptom.of(result, frozenset(features), attention_only=True)


def raising(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None) -> Tensor:
    """Raises for grouped heads, and for causal calls."""
    if q.shape[1] != k.shape[1]:
        raise ValueError("heads differ" if q.shape[2] < 30 else "too long")
    if causal is not None:
        raise ValueError("heads differ")
    return right(q, k, v, scale=scale)


def test_an_exception_is_told_apart_by_its_text_and_by_what_ends_it() -> None:
    grouped = "k, v = (x[:, :1].expand(x.shape[0], q.shape[1], -1, -1) for x in (k, v))"
    calls = {
        "grouped": ("attend(q, k[:, :1], v[:, :1], scale=0.25)", [grouped, PLAIN]),
        "causal": (CALLS["causal"]["call"], CAUSAL.split("; ")),
    }

    def run(name: str, dims: str) -> SubjectResult:
        call, lines = calls[name]
        return run_subject(raising, text=source(*lines, dims=dims), attention_stub=source(f"return {call}", dims=dims))

    found = {name: run(name, "2, 4, 17, 16") for name in calls}
    assert {result.verdict for result in found.values()} == {Verdict.RUNTIME_ERROR}
    assert {name: set(one.wrong_rewrites[0].right) for name, one in found.items()} == {
        "grouped": {"group"},
        "causal": {"causal"},
    }
    again = {name: symptom(run(name, "1, 2, 9, 8")) for name in calls}
    for one in calls:
        assert [name for name in calls if symptom(found[one]).is_measured_in(again[name])] == [one]
    assert not symptom(found["grouped"]).is_like(symptom(run("grouped", "1, 2, 40, 8")))


PLAIN_CASE = loads("""
case_format: 1
dims: {B: 2, H: 2, S: 5, D: 8}
mode: inference
inputs:
  q: {shape: [B, H, S, D], dtype: float32, values: {kind: normal, seed: 0}}
  k: {shape: [B, H, S, D], dtype: float32, values: {kind: normal, seed: 1}}
  v: {shape: [B, H, S, D], dtype: float32, values: {kind: normal, seed: 2}}
ops:
  - {name: out, op: sdpa, args: [q, k, v], scale: 0.25}
returns: [out]
contracts:
  - {q: q, k: k, v: v, output: out, scale: 0.25}
""")
TRAINED = replace(PLAIN_CASE, mode="training")


def with_input(case: Case, name: str, **fields: Any) -> Case:
    return map_inputs(case, lambda item: replace(item, **fields) if item.name == name else item)


STATES = {
    "inference_in_place": (PLAIN_CASE, replace(PLAIN_CASE, mode="inference_mode")),
    "constant_queries": (TRAINED, with_input(TRAINED, "q", requires_grad=False)),
    "batch_stride_zero": (PLAIN_CASE, with_input(PLAIN_CASE, "k", layout="expanded")),
    "expanded_dout": (TRAINED, replace(TRAINED, mode="training_on_sum")),
    "values_clipped": (PLAIN_CASE, with_input(PLAIN_CASE, "v", values=Values("normal", 2, 1000.0))),
    "value_returned": (PLAIN_CASE, replace(PLAIN_CASE, dims=(("B", 2), ("H", 2), ("S", 1), ("D", 8)))),
}
FAILURES: dict[str, tuple[Verdict, str, dict[str, Any]]] = {
    "inference_in_place": (Verdict.OUT_OF_BOUNDS, "out_of_bounds", {}),
    "constant_queries": (Verdict.WRONG_GRADIENT, "wrong_value", {"value": Value.of_result("dk")}),
    "batch_stride_zero": (Verdict.WRONG_RESULT, "wrong_value", {"value": Value.of_result("out")}),
    "expanded_dout": (Verdict.NONFINITE, "not_finite", {}),
    "values_clipped": (Verdict.WRONG_RESULT, "wrong_value", {"value": Value.of_result("out")}),
    "value_returned": (Verdict.METADATA, "form_differs", {"aspect": "memory", "actual_owner": Value("result", "v")}),
}


def judge(case: Case, function: Any) -> SubjectResult:
    configure_torch()
    subject = Subject("asked", attention=Attention(lambda: function))
    result = check(build_check(Question(case, ("asked",))), {"asked": subject}, "cpu")
    assert result.rejected is None, result.rejected
    return result.results[0]


@pytest.mark.parametrize("name", STATES)
def test_a_defect_of_a_state_shows_there_alone(name: str) -> None:
    plain, changed = STATES[name]
    verdict, kind, fields = FAILURES[name]
    defect = planted(name)
    found = judge(changed, defect)
    assert found.verdict is verdict
    assert is_failure(found.failure, kind, **fields)
    assert not judge(plain, defect).verdict.is_finding
    assert not judge(changed, dense).verdict.is_finding


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("inference_in_place", "inference_mode"),
        ("constant_queries", "constant_inputs"),
        ("expanded_dout", "expanded_dout"),
    ],
)
def test_the_plain_state_makes_a_wrong_call_right(name: str, state: str) -> None:
    measured = judge(STATES[name][1], planted(name)).wrong_rewrites
    assert all(state in one.dropped for one in measured)
    assert bool(measured) == (FAILURES[name][0] is not Verdict.OUT_OF_BOUNDS)


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_stored_is_less_simple_and_shrinks_back(name: str) -> None:
    plain, changed = STATES[name]
    assert loads(dumps(changed)) == changed
    assert changed.id != plain.id
    if changed.dims == plain.dims:
        assert sort_key(plain) < sort_key(changed)
        passed = shrink(
            changed, lambda case: len(case.ops) == 1 and case.training is changed.training, is_readable=False
        )
        assert emit(passed[-1]) == emit(
            shrink(plain, lambda case: len(case.ops) == 1 and case.training is plain.training, is_readable=False)[-1]
        )
