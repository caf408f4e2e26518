"""Rounding that is by design is told from mistakes by running again."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from torch import Tensor, nn

from fuzz.check.check import check
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api import settings
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, SubjectResult, Verdict
from fuzz.protocol.failures import Value
from tests.check.client import Asker
from tests.check.in_process import is_failure, plain, source


def planted(name: str) -> str:
    return f"tests.check.planted:{name}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_cast_left_out_explains_is_policy_and_keeps_its_numbers(worker: Asker, dtype: str) -> None:
    result = worker.one(source("y = q * 1.1", "return y - y.clone()", dtype=dtype), planted("skips_a_cast"))
    assert result.verdict == Verdict.PRECISION_POLICY and not result.verdict.is_finding
    assert is_failure(result.failure, "wrong_value", value=Value("output", 0))
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


def test_a_torch_that_cannot_keep_casts_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_it(values: dict[str, Any]) -> Any:
        if "emulate_precision_casts" in values:
            raise SubjectError("torch has no such setting")
        return nullcontext()

    monkeypatch.setattr(settings, "apply", lacks_it)
    assert in_process(plain("bfloat16"), zeroing).verdict == Verdict.WRONG_RESULT


def zeroing(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    def run(*inputs: Tensor) -> Tensor:
        out: Tensor = module(*inputs).clone()
        out[0, 0, 3] = 0
        return out

    return run


def in_process(text: str, compiling: Callable[..., Any]) -> SubjectResult:
    subject = Subject("inductor", compiling)
    request = Check(1, text, (subject.name,))
    return check(request, {subject.name: subject}, "cpu", lambda stage: None, lambda: 0.0).results[0]
