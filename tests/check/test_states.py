"""States of a call: each is one change of a plain case, shows a defect that shows only there, and shrinks back."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.defects import planted
from benchmarks.plain import dense
from corpus.casefile import dumps, loads
from corpus.shrink import shrink
from fuzz.ask.evaluator import build_check
from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.settings import configure_torch
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Value
from generators.program.case import Case, Values
from generators.program.edits import map_inputs
from generators.program.emit import source
from generators.program.simplicity import sort_key
from tests.check.failures import is_failure

PLAIN = loads("""
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
TRAINED = replace(PLAIN, mode="training")


def with_input(case: Case, name: str, **fields: Any) -> Case:
    return map_inputs(case, lambda item: replace(item, **fields) if item.name == name else item)


STATES = {
    "inference_in_place": (PLAIN, replace(PLAIN, mode="inference_mode")),
    "constant_queries": (TRAINED, with_input(TRAINED, "q", requires_grad=False)),
    "batch_stride_zero": (PLAIN, with_input(PLAIN, "k", layout="expanded")),
    "expanded_dout": (TRAINED, replace(TRAINED, mode="training_on_sum")),
    "values_clipped": (PLAIN, with_input(PLAIN, "v", values=Values("normal", 2, 1000.0))),
    "value_returned": (PLAIN, replace(PLAIN, dims=(("B", 2), ("H", 2), ("S", 1), ("D", 8)))),
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
    result = check(build_check(case, ("asked",)), {"asked": subject}, "cpu", lambda _: None, lambda: 0.0)
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
        assert source(passed[-1]) == source(
            shrink(plain, lambda case: len(case.ops) == 1 and case.training is plain.training, is_readable=False)[-1]
        )
