"""Two runs on equal inputs: equal bit for bit where that is promised and eager is deterministic."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.doubt import is_documented
from fuzz.check.run.program import same_bits, same_numbers
from fuzz.check.run.subject_builder import Subject, find
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import Nondeterministic, Value
from tests.check.in_process import run_subject, source
from tests.check.test_called_functions import RIGHT, right


def restless(**capabilities: Any) -> Any:
    runs = itertools.count()

    class Uneven(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * (1 + next(runs) % 2 * 2.0**-22)

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out: Tensor = Uneven.apply(right(q, k, v, **options))  # type: ignore[no-untyped-call, unused-ignore]
        return out

    attention.capabilities = capabilities  # type: ignore[attr-defined]
    return attention


@pytest.mark.parametrize("dropout", [False, True])
def test_a_function_that_gives_other_gradients_the_second_time_is_told(dropout: bool) -> None:
    result = run_subject(restless(), training=True, dropout=dropout)
    assert result.verdict is Verdict.NONDETERMINISTIC
    assert result.failure == Nondeterministic(Value("input", 0, is_gradient=True))


def test_one_that_does_not_promise_it_is_not() -> None:
    assert run_subject(restless(deterministic=("cuda",)), training=True).verdict in RIGHT


def test_nobody_is_accused_where_eager_does_not_repeat_itself() -> None:
    text = source(
        "rng.calls = getattr(rng, 'calls', 0) + 1",
        "return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v * (1 + rng.calls % 2 * 2.0**-22)",
    )
    result = run_subject(Subject("eager"), text=text)
    assert result.verdict in RIGHT, result.failure


def unstable(module: Any, _dynamic: bool | None) -> Any:
    runs = itertools.count()
    return lambda *inputs: module(*inputs) * (1 + next(runs) % 2 * 2.0**-22)


@pytest.mark.parametrize("settings", [{}, {"use_deterministic_algorithms": True}, {"deterministic": True}])
def test_runs_that_differ_are_told(settings: dict[str, Any]) -> None:
    result = run_subject(Subject("inductor_options", unstable), settings=settings)
    assert result.failure == Nondeterministic(Value("output", 0))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("q.new_zeros(B).put_(torch.zeros(1, dtype=torch.long), q[:1, 0, 0, 0])", True),  # no deterministic algorithm
        ("q.new_zeros(B).scatter_add(0, torch.zeros(B, dtype=torch.long), q[:, 0, 0, 0])", True),  # another one
        ("q.new_zeros(B).index_put((torch.zeros(B, dtype=torch.long),), q[:, 0, 0, 0], accumulate=True)", True),
        ("q @ k.transpose(-2, -1)", False),
    ],
)
def test_what_torch_documents_is_told_from_what_should_repeat(line: str, expected: bool) -> None:
    request = Check(id=0, source=source(f"return {line}"), subjects=())
    case = CaseRun(request, "cpu", lambda _: None)
    assert is_documented(case, find("passes")) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_zero_is_a_bit_and_no_number(dtype: torch.dtype) -> None:
    positive, negative = (torch.tensor([zero, torch.nan, -1.0], dtype=dtype) for zero in (0.0, -0.0))
    assert same_numbers(positive, negative) and not same_bits(positive, negative)
    assert same_bits(negative, torch.tensor([-0.0, -torch.nan, -1.0], dtype=dtype))
