"""Rounding that is by design is told from mistakes by running again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuzz.check import controls
from fuzz.check.check import check
from fuzz.check.exceptions import SubjectError
from fuzz.check.subject_builder import Subject
from fuzz.protocol import CASTS, TF32, Check, SubjectResult, Verdict
from tests.check.client import Asker
from tests.check.failures import is_failure
from tests.check.sources import plain, source


def planted(name: str) -> str:
    return f"tests.check.planted:{name}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_cast_left_out_explains_is_policy_and_keeps_its_numbers(worker: Asker, dtype: str) -> None:
    result = worker.one(source("y = q * 1.1", "return y - y.clone()", dtype=dtype), planted("skips_a_cast"))
    assert result.verdict == Verdict.PRECISION_POLICY and not result.verdict.is_finding
    assert is_failure(result.failure, "wrong_value", value="output 0") and result.excuse == CASTS
    assert "ratio" in result.numbers and not result.where


@pytest.mark.parametrize(
    ("name", "verdict"), [("elides", Verdict.WRONG_RESULT), ("elides_into_nan", Verdict.NONFINITE)]
)
def test_kept_casts_excuse_no_more_than_casts_do(worker: Asker, name: str, verdict: Verdict) -> None:
    assert worker.one(plain("bfloat16"), planted(name)).verdict == verdict


@pytest.mark.parametrize(("name", "verdict"), [("zeroed_row", Verdict.WRONG_RESULT), ("nan_column", Verdict.NONFINITE)])
def test_a_mistake_stays_one_with_keep_casts(worker: Asker, name: str, verdict: Verdict) -> None:
    result = worker.one(plain("bfloat16"), planted(name))
    assert result.verdict == verdict and result.where


def test_a_mistake_that_comes_and_goes_is_no_policy(worker: Asker) -> None:
    assert worker.one(plain("bfloat16"), planted("elides_once")).verdict == Verdict.WRONG_RESULT


def test_casts_explain_nothing_where_nothing_is_rounded_to_low_precision(worker: Asker) -> None:
    assert worker.one(plain(), planted("elides")).verdict == Verdict.WRONG_RESULT


@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rewrite_that_is_wrong_stays_a_finding(worker: Asker, dtype: str) -> None:
    over_queries = source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-2) @ v", dtype=dtype)
    assert worker.one(over_queries, "passes").verdict == Verdict.WRONG_RESULT


def test_a_torch_that_cannot_keep_casts_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_it(_values: Any) -> Any:
        raise SubjectError("torch has no such setting")

    monkeypatch.setattr(controls, "patch_config", lacks_it)
    assert in_process(plain("bfloat16"), zeroing).verdict == Verdict.WRONG_RESULT


#: Of a device with TF32: products round q, k and v to 11 significant bits when they may.
TENSOR_CORES_ROUND = (
    "def rounded(x):",
    "    if not torch.backends.cuda.matmul.allow_tf32:",
    "        return x",
    "    return (x.view(torch.int32) + 0x1000 & ~0x1fff).view(torch.float32)",
)
TENSOR_CORES = source(
    *TENSOR_CORES_ROUND, "return (rounded(q) @ rounded(k).transpose(-2, -1) / 4.0).softmax(dim=-1) @ rounded(v)"
)


def fusing(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    return lambda q, k, v: fused(q, k, v) if torch.backends.cuda.matmul.allow_tf32 else module(q, k, v)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rounded too, and elsewhere."""
    scores = (q / 4.0).half().float() @ k.half().float().transpose(-2, -1)
    return torch.matmul(scores.softmax(-1).half().float(), v.half().float())


def zeroing(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    def run(*inputs: Tensor) -> Tensor:
        out: Tensor = module(*inputs).clone()
        out[0, 0, 3] = 0
        return out

    return run


def in_process(text: str, compiling: Callable[..., Any], *, random: bool = False, **more: Any) -> SubjectResult:
    subject = Subject("inductor_tf32_random" if random else "inductor_tf32", compiling, **more)
    request = Check(1, text, (subject.name,), random=random)
    return check(request, {subject.name: subject}, "cpu", lambda stage: None, lambda: 0.0).results[0]


def test_what_eager_does_in_tf32_is_policy() -> None:
    result = in_process(TENSOR_CORES, fusing, tf32=True)
    assert result.verdict == Verdict.PRECISION_POLICY
    assert result.excuse == TF32
    assert result.numbers["ratio"] > result.numbers["limit"] == 32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_same_without_tf32_is_wrong() -> None:
    assert in_process(TENSOR_CORES, lambda module, _: fused).verdict == Verdict.WRONG_RESULT


def test_a_row_lost_with_tf32_is_wrong() -> None:
    assert in_process(TENSOR_CORES, zeroing, tf32=True).verdict == Verdict.WRONG_RESULT


def test_one_percent_is_more_than_tf32_explains() -> None:
    result = in_process(TENSOR_CORES, lambda module, _: lambda q, k, v: fused(q, k, v) * 1.01, tf32=True)
    assert result.verdict == Verdict.WRONG_RESULT


#: With dropout, and a value beside it that is a product and not random.
DROPPING_CORES = source(
    *TENSOR_CORES_ROUND,
    "scores = rounded(q) @ rounded(k).transpose(-2, -1) / 4.0",
    "return F.dropout(scores.softmax(dim=-1), 0.3, True) @ rounded(v), scores",
)


def dropping(kept: float = 1.0, certain: float = 1.0) -> Callable[..., Any]:
    """Rounds elsewhere and draws other numbers; what is random times `kept`, what is not times `certain`."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        torch.rand(7)
        scores = (q / 4.0).half().float() @ k.half().float().transpose(-2, -1)
        return kept * nn.functional.dropout(scores.softmax(dim=-1), 0.3, True) @ v.half().float(), certain * scores

    return lambda module, _dynamic: call


def test_with_dropout_too_eager_in_tf32_is_the_measure() -> None:
    result = in_process(DROPPING_CORES, dropping(), random=True, tf32=True)
    assert result.verdict == Verdict.RANDOM_STREAM, result
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("wrong", [{"kept": 1.05}, {"certain": 1.01}])
def test_with_dropout_too_what_tf32_does_not_explain_is_wrong(wrong: dict[str, float]) -> None:
    assert in_process(DROPPING_CORES, dropping(**wrong), random=True, tf32=True).verdict == Verdict.WRONG_RESULT
