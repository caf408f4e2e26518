"""A program that is one attention, and that a rewrite fuses, is held to the rounding of fused attention."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuzz.check.attention.pure_attention import PureAttention
from fuzz.check.case_run import CaseRun, Clock
from fuzz.check.check import check
from fuzz.check.exceptions import SubjectError
from fuzz.check.program import Program, execute
from fuzz.check.recheck import explain_by_fused_rounding
from fuzz.check.subject_builder import Subject, find
from fuzz.evaluator import build_check
from fuzz.protocol import Check, SubjectResult, Verdict
from generators.program.case import Case, Contract, Input, Op, Values
from generators.program.sizes import Size
from tests.check.planted_attention import right
from tests.check.sources import source

SIZES = "2, 4, 96, 16"
MOVED = ("q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))",)
MERGED = "out.permute(0, 2, 1, 3).reshape(B, H, S * D)"


def texts(*before: str, after: str = "out", scale: float = 0.25, **more: Any) -> tuple[str, str]:
    """A case and its stand-in, in bfloat16."""
    more = {"dims": SIZES, "dtype": "bfloat16", **more}
    written = source(*before, f"out = (q @ k.transpose(-2, -1) * {scale}).softmax(-1) @ v", f"return {after}", **more)
    return written, source(*before, f"out = attend(q, k, v, scale={scale})", f"return {after}", **more)


@pytest.mark.parametrize(
    ("before", "after", "layout"),
    [((), "out", "B, H, S, D"), (MOVED, "out.permute(0, 2, 1, 3)", "B, S, H, D"), (MOVED, MERGED, "B, S, H, D")],
)
def test_a_case_that_only_moves_data_is_read_as_one_call(before: tuple[str, ...], after: str, layout: str) -> None:
    written, attention_stub = texts(*before, after=after, layout=layout, dtype="float32")
    program = Program(written)
    module = program.module(True)
    run = execute(module, module, [program.inputs()], training=True)
    call = PureAttention(attention_stub, "cpu", training=True).call(run, run.cotangents)
    assert call is not None
    assert call.out is not None
    assert call.dout is not None
    leaves = [x.clone().requires_grad_() for x in (call.q, call.k, call.v)]
    expected = right(leaves[0], leaves[1], leaves[2], scale=0.25)
    torch.testing.assert_close(call.out, expected.detach())
    gradients = torch.autograd.grad(expected, leaves, call.dout)
    for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=True):
        torch.testing.assert_close(call.gradients[name], gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("before", ["q = q * 3.0", "v = v + 1.0", "k = q"])
def test_a_case_that_computes_something_is_not(before: str) -> None:
    written, attention_stub = texts(before)
    program = Program(written)
    module = program.module(False)
    run = execute(module, module, [program.inputs()], training=False)
    assert PureAttention(attention_stub, "cpu", training=False).call(run, {}) is None


def rounding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with every step rounded, as eager has it, and in another order."""
    weights: Tensor = (k @ (q * 0.25).mT).mT.softmax(-1)
    return weights @ v


def fusing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return right(q, k, v, scale=0.25)


def run_subject(computed: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, *, fused: bool) -> SubjectResult:
    """The verdict on what computes a program whose scale is 0.25."""

    def compile_(_module: nn.Module, _dynamic: bool) -> Callable[..., Tensor]:
        return computed

    monkeypatch.setattr("fuzz.check.check.Coverage.fired", ("_sfdp_pattern_1",) if fused else ())
    written, attention_stub = texts()
    request = Check(1, written, ("s",), attention_stub=attention_stub)
    return check(request, {"s": Subject("s", compile_)}, "cpu", lambda stage: None, lambda: 0.0).results[0]


def test_what_eager_in_low_precision_allows_is_wrong_in_a_fused_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_subject(fusing, monkeypatch, fused=True).verdict.is_finding
    assert not run_subject(rounding, monkeypatch, fused=False).verdict.is_finding
    found = run_subject(rounding, monkeypatch, fused=True)
    assert found.verdict == Verdict.WRONG_RESULT
    assert getattr(found.failure, "value", None) == "out"


@pytest.mark.compiles
def test_weights_that_a_fused_call_computes_anew_are_no_mistake() -> None:
    """One key takes all the weight, and scores of some thousands are rounded: the weight is 1 in eager alone."""
    names = ("B", "H", "S", "D")
    shape = tuple(map(Size.of, names))
    scales = {"q": Values("one_row", 0, 30.0), "k": Values("normal", 1, 30.0), "v": Values("normal", 2, 8.0)}
    case = Case(
        tuple(zip(names, (1, 2, 32, 16), strict=True)),
        tuple(Input(name, shape, "float32", values) for name, values in scales.items()),
        (
            Op("kt", "transpose", ("k",)),
            Op("scores", "matmul", ("q", "kt")),
            Op("scaled", "mul", ("scores",), (("other", 1.0),)),
            Op("probs", "softmax", ("scaled",)),
            Op("out", "matmul", ("probs", "v")),
        ),
        ("out",),
        mode="training",
        contracts=(Contract("q", "k", "v", "out"),),
    )
    request = build_check(case, ("passes",))
    (result,) = check(request, {"passes": find("passes")}, "cpu", lambda stage: None, lambda: 0.0).results
    assert [name for name in result.fired if "sfdp" in name]
    assert not result.verdict.is_finding


def without_passes(*_: object) -> Any:
    raise SubjectError("this torch has no such passes")


def with_chance(*_: object) -> Any:
    """A backend whose kernels never give the same twice."""
    count = itertools.count(1)
    return lambda graph, _: lambda *inputs: tuple(value + next(count) for value in graph(*inputs))


@pytest.mark.compiles
@pytest.mark.parametrize("backend", [without_passes, with_chance])
def test_kernels_that_cannot_be_asked_or_trusted_explain_nothing(
    backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzz.check.graph_passes.backend", backend)
    case = CaseRun(Check(1, source("return q * k"), ("s",)), "cpu", lambda stage: None, Clock(), Clock())
    run = replace(case.eager, outputs={name: value + 1 for name, value in case.eager.outputs.items()})
    judgement = case.judge_runs([run])
    assert judgement.verdict is Verdict.WRONG_RESULT
    assert explain_by_fused_rounding(judgement, case, run) == judgement
