"""The list of excuses: its page, what a row is enough for, and what casts and fused calls may explain."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fuzz.check.judge import licences
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.licences import LICENCES, Licence, excuse
from fuzz.check.judge.open_orders import OPEN
from fuzz.check.judge.verdict import RightRuns
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import Value
from generators.program.attention_options import Contract
from generators.program.case import Case, Input, Op, Values
from generators.program.sizes import Size
from tests.check.client import Asker
from tests.check.faults import with_gradient
from tests.check.in_process import changing, is_failure, judge_case, plain, run_subject, source
from tests.command import ROOT


def print_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def list_licences() -> Iterator[str]:
    yield print_row("excuse", "turns", "into", "when", "counts as right", "source")
    yield "|---|---|---|---|---|---|"
    for row in LICENCES:
        turns = ", ".join(f"`{verdict}`" for verdict in row.turns) or "measured"
        yield print_row(
            row.name, turns, f"`{row.verdict}`" if row.verdict else "as measured", row.when, row.right, row.source
        )


def list_open() -> Iterator[str]:
    yield print_row("operations", "left open", "documentation")
    yield "|---|---|---|"
    for row in OPEN:
        names = ", ".join(f"`{name}`" for name in sorted(row.operations))
        yield print_row(names, row.what, f'["{row.sentence}"]({row.source})')


@pytest.mark.parametrize("rows", [list_licences, list_open])
def test_the_page_has_the_table(rows: Callable[[], Iterator[str]]) -> None:
    page = (ROOT / "docs" / "oracle.md").read_text()
    assert [row for row in rows() if row not in page] == []
    assert "\n".join(rows()) + "\n" in page


def test_each_harmless_difference_has_a_row() -> None:
    without = {Verdict.OK, Verdict.REJECTED, Verdict.SKIPPED}
    assert {row.verdict for row in LICENCES if row.verdict} == {
        verdict for verdict in Verdict if not verdict.is_finding
    } - without
    assert all(verdict.is_finding or verdict is Verdict.RANDOM_STREAM for row in LICENCES for verdict in row.turns)


def run_scaled(doubt: Doubt) -> Iterator[RightRuns]:
    eager = doubt.case.eager
    outputs = {name: value * 1.01 for name, value in eager.outputs.items()}
    yield RightRuns(doubt.case.exact, (replace(eager, outputs=outputs),))


@pytest.mark.parametrize(
    ("name", "factor", "verdict"),
    [
        ("package.module:other", 1.01, Verdict.PRECISION_POLICY),
        ("package.module:other", -1.0, Verdict.WRONG_RESULT),
        ("package.module:own", 1.01, Verdict.WRONG_RESULT),
    ],
    ids=["right there", "wrong there too", "another compiler"],
)
def test_another_compiler_is_excused_by_a_row(
    name: str, factor: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Licence(
        "a policy of another compiler",
        tuple(verdict for verdict in Verdict if verdict.has_wrong_numbers),
        Verdict.PRECISION_POLICY,
        "",
        "",
        "",
        lambda doubt: doubt.subject.name == "package.module:other",
        run_scaled,
    )
    monkeypatch.setattr(licences, "LICENCES", (*LICENCES, row))
    assert run_subject(changing(lambda out: out * factor, name), text=source("return q + k")).verdict is verdict


def double_gradients(module: nn.Module, _dynamic: bool | None) -> Any:
    return lambda *inputs: module(*(with_gradient(value, lambda gradient: gradient * 2) for value in inputs))


def test_an_order_excuses_no_gradient_under_dropout() -> None:
    body = "return q.clone().index_copy_(2, torch.arange(S) % 3, F.dropout(k, 0.2)) + v"
    result = run_subject(Subject("inductor", double_gradients), text=source(body), training=True, dropout=True)
    assert result.verdict is Verdict.WRONG_GRADIENT, result.failure


def planted(name: str) -> str:
    return f"tests.check.planted:{name}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_cast_left_out_explains_is_policy_and_keeps_its_numbers(worker: Asker, dtype: str) -> None:
    result = worker.one(source("y = q * 1.1", "return y - y.clone()", dtype=dtype), planted("skips_a_cast"))
    assert result.verdict == Verdict.PRECISION_POLICY and not result.verdict.is_finding
    assert is_failure(result.failure, "wrong_value", value=Value("output", 0))
    assert "ratio" in result.numbers and not result.where


@pytest.mark.parametrize(
    ("name", "dtype", "verdict"),
    [
        ("elides", "bfloat16", Verdict.WRONG_RESULT),  # by more than casts do
        ("elides_into_nan", "bfloat16", Verdict.NONFINITE),
        ("zeroed_row", "bfloat16", Verdict.WRONG_RESULT),  # with casts that are kept too
        ("nan_column", "bfloat16", Verdict.NONFINITE),
        ("elides_once", "bfloat16", Verdict.WRONG_RESULT),
        ("elides", "float32", Verdict.WRONG_RESULT),  # nothing is rounded to low precision
    ],
)
def test_kept_casts_excuse_no_more_than_casts_do(worker: Asker, name: str, dtype: str, verdict: Verdict) -> None:
    result = worker.one(plain(dtype), planted(name))
    assert result.verdict == verdict and result.where


def test_a_torch_that_cannot_keep_casts_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_it(values: dict[str, Any]) -> Any:
        if "emulate_precision_casts" in values:
            raise SubjectError("torch has no such setting")
        return nullcontext()

    monkeypatch.setattr(settings, "apply", lacks_it)
    zeroing = changing(lambda out: out.index_fill(2, torch.tensor([3]), 0.0), "inductor")
    assert run_subject(zeroing, text=plain("bfloat16")).verdict == Verdict.WRONG_RESULT


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
    result = judge_case(case, "passes")
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
