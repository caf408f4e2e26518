"""Dropout that draws other numbers than eager's is held to their distribution."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fuzz.check.check import check
from fuzz.check.oracle.dropout import Comparison
from fuzz.check.program import Execution, Program, execute
from fuzz.check.subjects import Subject
from fuzz.protocol import Check, SubjectResult, Verdict
from tests.check.sources import source

P = 0.1
BODY = f"return F.dropout((q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1), {P}, self.training) @ v"


def judged(computed: Callable[..., Any], body: str = BODY, *, training: bool = True, **more: Any) -> SubjectResult:
    subject = Subject("planted", lambda module, dynamic: computed)
    return of(subject, source(body, **more), training=training)


def of(subject: Subject, text: str, *, training: bool = True) -> SubjectResult:
    request = Check(1, text, (subject.name,), training=training, random=True)
    return check(request, {subject.name: subject}, "cpu", lambda stage: None, lambda: 0.0).results[0]


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("training", [True, False])
def test_another_stream_of_the_same_dropout_is_right(dtype: str, training: bool) -> None:
    body = BODY.replace("self.training", "True")
    result = judged(dropping(), body, dtype=dtype, training=training)
    assert result.verdict == Verdict.RANDOM_STREAM


def test_a_fused_kernel_that_takes_dropout_is_right() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.rand(1)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=P, scale=0.25)

    assert judged(run).verdict == Verdict.RANDOM_STREAM


WRONG = {
    "p for 1 - p": (dropping(1 - P), "variance"),
    "p ten percent too high": (dropping(1.1 * P), "variance"),
    "p ten percent too low": (dropping(0.9 * P), "variance"),
    "kept weights not scaled": (dropping(scale=1.0), "mean"),
    "kept weights scaled twice": (dropping(scale=1 / (1 - P) ** 2), "mean"),
    "no dropout": (lambda q, k, v: weights(q, k) @ v, "variance"),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_distribution_is_wrong_and_said_in_words(name: str) -> None:
    computed, kind = WRONG[name]
    result = judged(computed)
    assert result.verdict == Verdict.WRONG_RESULT
    assert result.message.startswith(f"output 0: {kind} over 256 dropout seeds is ")
    assert "times eager's" in result.message and result.message.endswith("standard errors away")
    assert result.numbers["seeds"] == 256 and result.numbers["ratio"] > 8


def test_the_message_says_by_how_much() -> None:
    assert "mean over 256 dropout seeds is 0.9 times eager's" in judged(dropping(scale=1.0)).message
    assert "variance over 256 dropout seeds is 0 times eager's" in judged(lambda q, k, v: weights(q, k) @ v).message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_hides_none_of_it(dtype: str) -> None:
    assert judged(dropping(scale=1.0), dtype=dtype).verdict == Verdict.WRONG_RESULT
    assert judged(dropping(0.2), dtype=dtype).verdict == Verdict.WRONG_RESULT


def test_one_head_without_dropout_is_seen_and_named() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = dropping()(q, k, v)
        return torch.cat([out[:, :2], (weights(q, k) @ v)[:, 2:3], out[:, 3:]], 1)

    result = judged(run)
    assert result.verdict == Verdict.WRONG_RESULT
    assert result.message.startswith(
        ("output 0[:, 2]: variance", "output 0[0, 2]: variance", "output 0[1, 2]: variance")
    )


TWO = f"return F.dropout(q, {P}, self.training), weights @ v"
TWO_BODY = ("weights = (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1)", TWO)


def two(attend: Callable[..., Tensor]) -> SubjectResult:
    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return q * (torch.rand(q.shape) >= P) / (1 - P), attend(q, k, v)

    return of(Subject("planted", lambda module, dynamic: run), source(*TWO_BODY))


def test_dropout_where_eager_has_none_is_wrong() -> None:
    result = two(dropping())
    assert result.verdict == Verdict.WRONG_RESULT
    assert result.message.startswith("output 1: variance over 256 dropout seeds is above 0, eager's is 0")


def test_what_no_seed_changes_is_judged_as_ever() -> None:
    assert two(lambda q, k, v: weights(q, k) @ v).verdict == Verdict.RANDOM_STREAM
    result = two(lambda q, k, v: weights(q, k * 1.01) @ v)
    assert result.verdict == Verdict.WRONG_RESULT
    assert result.message.startswith("output 1: element [")


class TwoMasks(torch.autograd.Function):
    """Dropout that draws another mask for its backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * (torch.rand(value.shape) >= P) / (1 - P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (torch.rand(gradients[0].shape) >= P) / (1 - P)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_mask_in_backward_is_a_wrong_gradient(dtype: str) -> None:
    dropped: Callable[[Tensor], Tensor] = TwoMasks.apply
    result = judged(lambda q, k, v: dropped(weights(q, k)) @ v, dtype=dtype)
    assert result.verdict == Verdict.WRONG_GRADIENT
    assert "are not the slope of the outputs, as when forward and backward drop different elements" in result.message


EMPTY = "weights = F.dropout(weights, 0.5, self.training); return weights / weights.sum(-1, keepdim=True) @ v"


def normalised(*, first_row_lost: bool) -> Callable[..., Tensor]:
    """Divides by 0 where a row is dropped whole, as one of three keys is now and then."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = weights(q, k)
        kept = found * (torch.rand(found.shape) >= 0.5)
        if first_row_lost:
            kept[..., 0, :] = 0
        return kept / kept.sum(-1, keepdim=True) @ v

    return run


@pytest.mark.parametrize("seed", range(4))
def test_what_some_random_numbers_make_infinite_is_judged_by_how_often_they_do(seed: int) -> None:
    text = source(TWO_BODY[0], EMPTY, dims="1, 1, 3, 4").replace(".manual_seed(seed)", f".manual_seed(seed + {seed})")
    some = Subject("planted", lambda module, dynamic: normalised(first_row_lost=False))
    always = Subject("planted", lambda module, dynamic: normalised(first_row_lost=True))
    assert not of(some, text).verdict.is_finding
    result = of(always, text)
    assert result.verdict == Verdict.NONFINITE
    assert "output 0: not finite with 100% of 256 dropout seeds, more often than eager's" in result.message


def test_gradients_with_another_keep_rate_are_wrong() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        right = dropping()(q, k, v)
        return right.detach() + (1 - P) * (right - right.detach())

    result = judged(run)
    assert result.verdict == Verdict.WRONG_GRADIENT


def test_a_right_program_takes_the_fewest_seeds() -> None:
    program = Program(source(BODY))
    module = program.module(training=True)
    first = execute(module, module, program.inputs(), training=True)
    seeds = []

    def run(seed: int, inputs: list[Any], gradients: bool) -> Execution:
        seeds.append(seed)
        cotangents = first.cotangents if gradients else {}
        return execute(module, module, inputs, training=True, cotangents=cotangents, seed=seed)

    comparison = Comparison(run, run, first, first, program.inputs, torch.float32)
    assert comparison.difference(lambda number: run) is None
    assert len(set(seeds)) == 32
