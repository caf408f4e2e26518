"""A program that a rewrite fuses may round as fused attention does."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fuzz.ask.question import Question, build_check
from fuzz.check.check import check
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.licences import excuse
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, Verdict
from generators.program.attention_options import Contract
from generators.program.case import Case, Input, Op, Values
from generators.program.sizes import Size
from tests.check.in_process import source


@pytest.mark.compiles
def test_weights_that_a_fused_call_computes_anew_are_no_mistake() -> None:
    """One key takes all the weight, and scores of some thousands are rounded: the weight is 1 in eager alone."""
    names = ("B", "H", "S", "D")
    shape = tuple(map(Size.of, names))
    scales = {"q": Values("one_row", 0, 15.0), "k": Values("normal", 1, 30.0), "v": Values("normal", 2, 8.0)}
    case = Case(
        tuple(zip(names, (1, 2, 32, 16), strict=True)),
        tuple(Input(name, shape, "float32", values) for name, values in scales.items()),
        (
            Op("kt", "transpose", ("k",)),
            Op("scores", "matmul", ("q", "kt")),
            Op("scaled", "mul", ("scores",), (("other", 2.0),)),
            Op("probs", "softmax", ("scaled",)),
            Op("out", "matmul", ("probs", "v")),
        ),
        ("out",),
        mode="training",
        contracts=(Contract("q", "k", "v", "out"),),
    )
    request = build_check(Question(case, ("passes",)))
    (result,) = check(request, {"passes": find("passes")}, "cpu", lambda stage: None, lambda: 0.0).results
    assert [name for name in result.applied_rewrites if "sfdp" in name]
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
    monkeypatch.setattr("fuzz.check.run.graph_passes.backend", backend)
    case = CaseRun(Check(1, source("return q * k"), ("s",)), "cpu", lambda stage: None)
    run = replace(case.eager, outputs={name: value + 1 for name, value in case.eager.outputs.items()})
    judgement = case.judge_runs([run])
    assert judgement.verdict is Verdict.WRONG_RESULT
    proven = replace(judgement, right_rewrites=("_sfdp_pattern_1",))
    doubt = Doubt(judgement, run, case, Subject("passes"), case.judge.judge, prove=lambda _: proven)
    assert excuse(doubt).judgement == proven
