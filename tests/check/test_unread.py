"""Dropout of functions whose mask can't be read: what is wrong without it is told, and right ones are left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.protocol import Verdict
from fuzz.protocol.failures import Value
from tests.check.failures import is_failure
from tests.check.in_process import run_subject
from tests.check.test_called_functions import RIGHT, right

NARROW = "2, 4, 80, 16"


def of_one_width(change: Callable[[Tensor], Tensor] = lambda out: out) -> Callable[..., Tensor]:
    """A function that takes values as wide as keys alone, so that its mask takes too many calls."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any
    ) -> Tensor:
        return change(right(q, k, v, dropout=dropout, **options)) if dropout else right(q, k, v, **options)

    attention.capabilities = {"value_dim": False}  # type: ignore[attr-defined]
    return attention


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_ones_accuse_nobody(training: bool, dtype: str) -> None:
    result = run_subject(of_one_width(), training=training, dropout=True, dims=NARROW, dtype=dtype)
    assert result.verdict is Verdict.RANDOM_STREAM, result.failure


def test_what_is_not_finite_is_wrong_under_every_mask() -> None:
    result = run_subject(of_one_width(lambda out: out * torch.nan), dropout=True, dims=NARROW)
    assert result.verdict is Verdict.NONFINITE
    assert is_failure(result.failure, "not_finite", value=Value.of_result("out"), count=10240)


def test_what_is_wrong_without_dropout_is_told_of_it() -> None:
    attention = of_one_width()

    def without_last_key(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return attention(q, k[:, :, :-1], v[:, :, :-1], **options)

    without_last_key.capabilities = {"value_dim": False}  # type: ignore[attr-defined]
    result = run_subject(without_last_key, dropout=True, dims=NARROW)
    assert result.verdict is Verdict.WRONG_RESULT
    assert is_failure(result.failure, "wrong_value", value=Value.of_result("out"), without_dropout=True)


def test_so_is_a_wrong_gradient() -> None:
    def with_wrong_gradient(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return of_one_width()(q, k + 0.5 * (k - k.detach()), v, **options)

    with_wrong_gradient.capabilities = {"value_dim": False}  # type: ignore[attr-defined]
    result = run_subject(with_wrong_gradient, dropout=True, training=True, dims=NARROW)
    assert result.verdict is Verdict.WRONG_GRADIENT
    assert is_failure(result.failure, "wrong_value", value=Value.of_result("dk"), without_dropout=True)


def test_a_mask_is_read_with_wider_values_where_they_are_taken() -> None:
    def repeating(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: tuple[float, int] | None = None) -> Tensor:
        outs = [right(q[:, [h]], k[:, [h]], v[:, [h]], scale=scale, dropout=dropout) for h in range(q.shape[1])]
        return torch.cat(outs, 1)

    assert run_subject(right, dropout=True, training=True, dims=NARROW).verdict in RIGHT
    result = run_subject(repeating, dropout=True, dims=NARROW)
    assert result.verdict is Verdict.WRONG_RESULT
    assert is_failure(result.failure, "dropout_mask", problem="repeated", axis="head", lag=1, seen=1.0)


def test_a_function_whose_mask_depends_on_the_width_of_values_is_not_accused() -> None:
    def by_width(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: tuple[float, int] | None = None) -> Tensor:
        return right(q, k, v, scale=scale, dropout=(dropout[0], dropout[1] + v.shape[3]) if dropout else None)

    assert run_subject(by_width, dropout=True, dims=NARROW).verdict is Verdict.RANDOM_STREAM
