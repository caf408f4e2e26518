"""Dropout that draws other numbers than eager's: its distribution, and the independence of masks."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from corpus import casefile
from fuzz.check.judge import constants
from fuzz.check.judge.dropout import Comparison
from fuzz.check.judge.repeated_masks import find_repeated_mask
from fuzz.check.run.program import Execution, Program, execute
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.protocol import Check, Dropout, SubjectResult, Verdict
from fuzz.protocol.failures import DropoutStatistic, RepeatedMask, Value, WrongValue
from fuzz.protocol.render import describe
from generators.program.case import Case
from generators.program.emit import list_shown_dropouts
from tests.check.faults import with_gradient
from tests.check.in_process import check_here, judge_case, only, source

P = 0.1
BODY = f"return F.dropout((q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1), {P}, self.training) @ v"


def run_dropping(
    computed: Callable[..., Any], body: str = BODY, *, training: bool = True, **more: Any
) -> SubjectResult:
    return run_text(computed, source(body, **more), training=training)


def run_text(computed: Callable[..., Any], text: str, *, training: bool = True) -> SubjectResult:
    subject = Subject("package.module:planted", lambda module, dynamic: computed)
    return only(check_here(Check(1, text, (subject.name,), training=training, random=True), subject))


def statistic(result: SubjectResult) -> DropoutStatistic:
    assert isinstance(result.failure, DropoutStatistic)
    return result.failure


def weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1)


def dropping(p: float = P, scale: float | None = None) -> Callable[..., Tensor]:
    """Attention whose dropout draws from a stream of its own."""
    scale = 1 / (1 - p) if scale is None else scale

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = weights(q, k)
        kept = torch.rand(found.shape) >= p
        return (found * (kept * scale).to(found.dtype)) @ v

    return run


@pytest.mark.samples
@pytest.mark.parametrize(("dtype", "training"), [("float32", True), ("bfloat16", False), ("float16", True)])
def test_another_stream_of_the_same_dropout_is_right(dtype: str, training: bool) -> None:
    body = BODY.replace("self.training", "True")
    result = run_dropping(dropping(), body, dtype=dtype, training=training)
    assert result.verdict == Verdict.RANDOM_STREAM


@pytest.mark.samples
def test_a_fused_kernel_that_takes_dropout_is_right() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.rand(1)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=P, scale=0.25)

    assert run_dropping(run).verdict == Verdict.RANDOM_STREAM


def run_inference(computed: Callable[..., Any], **more: Any) -> SubjectResult:
    """Dropout that stays on in inference takes half the time of training."""
    return run_dropping(computed, BODY.replace("self.training", "True"), training=False, **more)


WRONG = {
    "p for 1 - p": (dropping(1 - P), "float32", "variance", None),
    "kept weights not scaled": (dropping(scale=1.0), "bfloat16", "mean", 0.9),
    "no dropout": (lambda q, k, v: weights(q, k) @ v, "float16", "variance", 0.0),
}


@pytest.mark.samples
@pytest.mark.parametrize("name", WRONG)
def test_another_distribution_is_wrong_in_any_precision_and_it_is_said_by_how_much(name: str) -> None:
    computed, dtype, kind, effect = WRONG[name]
    result = run_inference(computed, dtype=dtype)
    assert result.verdict == Verdict.WRONG_RESULT
    found = statistic(result)
    assert (found.value, found.statistic, found.seeds) == (Value("output", 0), kind, 256)
    assert result.numbers["seeds"] == 256 and result.numbers["ratio"] == found.standard_errors > 8
    assert effect is None or found.effect == pytest.approx(effect, abs=0.05)


@pytest.mark.samples
def test_a_rate_ten_percent_off_is_wrong() -> None:
    result = run_dropping(dropping(1.1 * P))
    assert result.verdict == Verdict.WRONG_RESULT and statistic(result).statistic == "variance"


@pytest.mark.samples
def test_one_head_without_dropout_is_seen_and_named() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = dropping()(q, k, v)
        return torch.cat([out[:, :2], (weights(q, k) @ v)[:, 2:3], out[:, 3:]], 1)

    result = run_inference(run)
    assert result.verdict == Verdict.WRONG_RESULT
    found = statistic(result)
    assert (found.value, found.statistic) == (Value("output", 0), "variance")
    assert found.part in ("[:, 2]", "[0, 2]", "[1, 2]")


TWO = f"return F.dropout(q, {P}, True), weights @ v"
TWO_BODY = ("weights = (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1)", TWO)


def two(attend: Callable[..., Tensor]) -> SubjectResult:
    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return q * (torch.rand(q.shape) >= P) / (1 - P), attend(q, k, v)

    return run_text(run, source(*TWO_BODY), training=False)


@pytest.mark.samples
def test_dropout_where_eager_has_none_is_wrong() -> None:
    result = two(dropping())
    assert result.verdict == Verdict.WRONG_RESULT
    found = statistic(result)
    assert (found.value, found.statistic, found.effect) == (Value("output", 1), "variance", math.inf)


@pytest.mark.samples
def test_what_no_seed_changes_is_judged_as_ever() -> None:
    assert two(lambda q, k, v: weights(q, k) @ v).verdict == Verdict.RANDOM_STREAM
    result = two(lambda q, k, v: weights(q, k * 1.01) @ v)
    assert result.verdict == Verdict.WRONG_RESULT
    assert isinstance(result.failure, WrongValue) and result.failure.value == Value("output", 1)


class TwoMasks(torch.autograd.Function):
    """Dropout that draws another mask for its backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * (torch.rand(value.shape) >= P) / (1 - P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (torch.rand(gradients[0].shape) >= P) / (1 - P)


@pytest.mark.samples
def test_another_mask_in_backward_is_a_wrong_gradient() -> None:
    dropped: Callable[[Tensor], Tensor] = TwoMasks.apply
    result = run_dropping(lambda q, k, v: dropped(weights(q, k)) @ v, dtype="bfloat16")
    assert result.verdict == Verdict.WRONG_GRADIENT
    assert statistic(result).statistic == "slope"


EMPTY = "weights = F.dropout(weights, 0.5, True); return weights / weights.sum(-1, keepdim=True) @ v"


def normalised(*, first_row_lost: bool) -> Callable[..., Tensor]:
    """Divides by 0 where a row is dropped whole, as one of three keys is now and then."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = weights(q, k)
        kept = found * (torch.rand(found.shape) >= 0.5)
        if first_row_lost:
            kept[..., 0, :] = 0
        return kept / kept.sum(-1, keepdim=True) @ v

    return run


@pytest.mark.samples
@pytest.mark.parametrize("seed", range(2))
def test_what_some_random_numbers_make_infinite_is_judged_by_how_often_they_do(seed: int) -> None:
    text = source(TWO_BODY[0], EMPTY, dims="1, 1, 3, 4").replace(".manual_seed(seed)", f".manual_seed(seed + {seed})")
    assert not run_text(normalised(first_row_lost=False), text, training=False).verdict.is_finding
    result = run_text(normalised(first_row_lost=True), text, training=False)
    assert result.verdict == Verdict.NONFINITE
    found = statistic(result)
    assert (found.value, found.statistic, found.effect, found.seeds) == (Value("output", 0), "nonfinite", 1.0, 256)


@pytest.mark.samples
def test_gradients_with_another_keep_rate_are_wrong() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        right = dropping()(q, k, v)
        return right.detach() + (1 - P) * (right - right.detach())

    result = run_dropping(run)
    assert result.verdict == Verdict.WRONG_GRADIENT


@pytest.mark.samples
def test_a_gradient_that_is_rounding_alone_has_no_distribution() -> None:
    """Softmax does not depend on what is added to a whole row."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        added = with_gradient(k[..., :1], lambda gradient: 2 * gradient)
        found = (q + added).softmax(dim=-1)
        return found * (torch.rand(found.shape) >= P) / (1 - P)

    body = "return F.dropout((q + k[..., :1]).softmax(dim=-1), 0.1, self.training)"
    assert not run_dropping(run, body).verdict.is_finding


@pytest.mark.samples
def test_a_gradient_that_is_rounding_alone_hides_no_wrong_one() -> None:
    body = "return F.dropout((q + k[..., :1]).softmax(dim=-1), 0.1, self.training) * v"

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        added = with_gradient(k[..., :1], lambda gradient: 2 * gradient)
        factor = with_gradient(v, lambda gradient: 1.05 * gradient)
        found = (q + added).softmax(dim=-1)
        return found * (torch.rand(found.shape) >= P) / (1 - P) * factor

    result = run_dropping(run, body)
    assert result.verdict is Verdict.WRONG_GRADIENT
    assert statistic(result).value == Value("input", 2, is_gradient=True)


@pytest.mark.samples
def test_a_right_program_takes_the_fewest_seeds() -> None:
    program = Program(source(BODY))
    module = program.module(training=True)
    first = execute(module, module, [program.inputs()], training=True)
    seeds = []

    def run(seed: int, inputs: list[Any], gradients: bool) -> Execution:
        seeds.append(seed)
        cotangents = first.cotangents if gradients else {}
        return execute(module, module, [inputs], training=True, cotangents=cotangents, seed=seed)

    comparison = Comparison(run, run, first, first, program.inputs, torch.float32)
    assert comparison.find_difference(lambda number: run) is None
    assert len(set(seeds)) == 32


SHARE = 0.25
CASE = casefile.loads(f"""
case_format: 1
dims: {{B: 2, H: 3, S: 8}}
inputs:
  x: {{shape: [B, H, S, S], dtype: float32, values: {{seed: 0}}}}
  z: {{shape: [B, H, S, S], dtype: float32, values: {{seed: 1}}}}
ops:
  - {{name: a, op: dropout, args: [x], p: {SHARE}}}
  - {{name: b, op: dropout, args: [z], p: 0.5}}
returns: [x, a, z, b]
mode: training
""")
TEXT = casefile.dumps(CASE).replace("training", "inference").replace("op: dropout,", "op: dropout, active: always,")
CALLED = casefile.loads(TEXT)
A, B = Value("output", 1), Value("output", 3)


def draw(like: Tensor, p: float, shape: tuple[int, ...] | None = None) -> Tensor:
    return torch.where(torch.rand(shape or like.shape).expand(like.shape) >= p, like / (1 - p), 0.0)


def share_seed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    drawn = torch.rand(x.shape)
    return torch.where(drawn >= SHARE, x / (1 - SHARE), 0.0), torch.where(drawn >= 0.5, y / 0.5, 0.0)


def drop_the_rest(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.rand(x.shape) >= 0.5
    return torch.where(kept, x / 0.5, 0.0), torch.where(kept, 0.0, y / 0.5)


def draw_once_in_two_calls() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    calls, drawn = itertools.count(), dict[str, Tensor]()

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(calls) % 2 == 0:
            drawn["x"] = torch.rand(x.shape)
        return torch.where(drawn["x"] >= SHARE, x / (1 - SHARE), 0.0), draw(y, 0.5)

    return run


def judge_masks(drop: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], case: Case = CALLED) -> SubjectResult:
    def run(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        torch.rand(1)
        a, b = drop(x, y)
        return x, a, y, b

    return judge_case(case, Subject("package.module:planted", lambda module, dynamic: run))


REPEATED: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], dict[str, Any]]] = {
    "two dropouts": (share_seed, {"value": A, "other": B}),
    "heads": (lambda x, y: (draw(x, SHARE, (2, 1, 8, 8)), draw(y, 0.5)), {"value": A, "axis": 1, "lag": 1}),
    "rows": (lambda x, y: (draw(x, SHARE), draw(y, 0.5, (2, 3, 1, 8))), {"value": B, "axis": None, "lag": 8}),
    "two calls": (draw_once_in_two_calls(), {"value": A}),
    "never both": (drop_the_rest, {"value": A, "other": B}),
}


@pytest.mark.parametrize("name", REPEATED)
def test_masks_that_repeat_are_found_and_named(name: str) -> None:
    drop, fields = REPEATED[name]
    case = casefile.loads(TEXT.replace("0.25", "0.5")) if name == "never both" else CALLED
    result = judge_masks(drop, case)
    assert result.verdict is Verdict.WRONG_RESULT and isinstance(result.failure, RepeatedMask)
    assert {field: getattr(result.failure, field) for field in fields} == fields
    assert result.failure.doubt == result.numbers["ratio"] > math.log(1 / constants.REPEATED_FALSE_ALARMS)
    assert "dropout mask" in describe(result)


def test_masks_that_are_independent_or_too_small_are_right() -> None:
    assert judge_masks(lambda x, y: (draw(x, SHARE), draw(y, 0.5))).verdict is Verdict.RANDOM_STREAM
    small = replace(CALLED, dims=(("B", 1), ("H", 1), ("S", 1)))
    assert judge_masks(share_seed, small).verdict is Verdict.RANDOM_STREAM


def test_dropouts_show_their_masks_if_argument_and_result_are_returned_as_they_were() -> None:
    assert list_shown_dropouts(CASE) == [(0, 1, SHARE), (2, 3, 0.5)]
    assert list_shown_dropouts(replace(CASE, returns=("a", "z", "b"))) == [(1, 2, 0.5)]
    assert list_shown_dropouts(replace(CASE, mode="inference")) == []
    written = TEXT.replace("ops:", "ops:\n- {name: c, op: mul_, args: [z], other: 2.0}")
    assert list_shown_dropouts(casefile.loads(written)) == [(0, 1, SHARE)]


@pytest.mark.samples
def test_few_independent_masks_are_called_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of a tenth, since none in 1e9 can't be seen."""
    monkeypatch.setattr(constants, "REPEATED_FALSE_ALARMS", 0.1)
    rows, alarms = (Dropout(0, 1, 0.1), Dropout(0, 2, 0.1), Dropout(0, 3, 0.9)), 0
    given, runs = torch.ones(2, 3, 8), 200
    torch.manual_seed(0)
    for _ in range(runs):
        outputs = {Value("output", 0, call=call): given for call in (1, 2, 3, 4)}
        outputs |= {Value("output", row.result, call=call): draw(given, row.p) for row in rows for call in (1, 2, 3, 4)}
        alarms += find_repeated_mask(Execution("", outputs), rows, 4) is not None
    assert alarms <= 0.1 * runs


@pytest.mark.compiles
@pytest.mark.parametrize(("plant", "fields"), [("seeds_shared", {"other": B}), ("mask_rows_repeated", {"lag": 8})])
def test_repeats_planted_in_torch_are_found(plant: str, fields: dict[str, Any]) -> None:
    assert judge_case(CASE, "inductor_random").verdict is Verdict.RANDOM_STREAM
    with wrap(*FUNCTIONS[plant]), torch._inductor.config.patch(fallback_random=False):
        result = judge_case(CASE, "inductor_random")
        assert isinstance(result.failure, RepeatedMask)
        assert {field: getattr(result.failure, field) for field in fields} == fields


def test_a_derivative_that_is_0_in_truth_is_judged_beside_other_random_numbers_as_without() -> None:
    """Each term behind it has the size of 1, and so does its rounding."""
    body = ["zero = torch.func.grad(lambda x: x.softmax(-1).sum())(q)", "return zero, F.dropout(v, 0.5)"]

    def compile_module(module: torch.nn.Module, _: object) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
            torch.rand(1)
            zero, dropped = module(*inputs)
            return zero + 1e-6, dropped

        return run

    request = Check(
        id=0,
        source=source(*body, dims="1, 1, 4, 8"),
        subjects=("passes_random",),
        training=True,
        random=True,
        derives=True,
    )
    assert only(check_here(request, Subject("passes_random", compile_module))).verdict is Verdict.RANDOM_STREAM
