"""Guarded memory, and what an attention function's output is held to, in the test's own process."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention, fill_matters
from fuzz.check.run.attention.guard import Guard
from fuzz.check.run.subject_builder import Subject
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import Failure, NotTaken, Refusal, Write
from tests.check.sources import plain, source


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 9)[:, 2:6],
        torch.randn(3, 8)[:, ::2],
        torch.randn(12).as_strided((4, 3), (2, 1)),
        torch.randn(0, 4),
        torch.tensor(1.0),
        torch.ones(3, 4, dtype=torch.bool).tril(),
        torch.arange(5),
        torch.randn(3, 4).bfloat16(),
    ],
    ids=lambda value: f"{list(value.shape)} {list(value.stride())} {value.dtype}",
)
def test_a_guarded_tensor_is_equal_and_laid_out_alike(value: Tensor) -> None:
    guard = Guard()
    given = guard.protect_argument("x", value)
    assert torch.equal(given, value) and given.dtype == value.dtype and given.stride() == value.stride()
    assert given.data_ptr() != value.data_ptr() or not value.numel()
    assert guard.damage() == ()


def test_gradients_flow_through() -> None:
    guard = Guard()
    value = torch.randn(2, 3, requires_grad=True)
    with guard:
        out = guard.protect_result(guard.protect_argument("x", value) * 2)
    (grad,) = torch.autograd.grad(out, value, torch.ones(2, 3))
    assert torch.equal(grad, torch.full((2, 3), 2.0)) and guard.damage() == ()


def test_what_lies_between_rows_is_guarded_and_poison() -> None:
    guard = Guard()
    rows = guard.protect_argument("x", torch.randn(3, 9)[:, 2:6])
    wide = rows.as_strided((3, 9), (9, 1), rows.storage_offset())
    assert wide[:2, 4:].isnan().all()
    wide[1, 5] = 0.0
    assert guard.damage() == (Write("x", "between", 1),)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU beside the CPU")
def test_writes_are_found_where_buffers_lie_on_two_devices() -> None:
    guard = Guard()
    given = [guard.protect_argument(device, torch.ones(2, device=device)) for device in ("cpu", "cuda")]
    assert guard.damage() == ()
    given[1].add_(1)
    assert guard.damage() == (Write("cuda", "itself", 2),)


def test_results_of_poison_are_told_from_it() -> None:
    guard = Guard()
    row = guard.protect_argument("x", torch.randn(4))
    beyond = row.as_strided((4,), (1,), row.storage_offset() + 4)
    beyond.copy_(beyond * 1.0)
    assert guard.damage() == (Write("x", "after", 4),)


def test_torch_is_left_as_it_was() -> None:
    before = (torch.empty, torch.zeros_like, torch.Tensor.new_zeros, "new_zeros" in vars(torch.Tensor))
    with Guard():
        assert torch.empty is not before[0]
        assert torch.empty(3).isnan().all() and torch.zeros(2, requires_grad=True).requires_grad
    assert (torch.empty, torch.zeros_like, torch.Tensor.new_zeros, "new_zeros" in vars(torch.Tensor)) == before


def test_fills_that_can_be_told_from_minus_infinity() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    assert not fill_matters(float("-inf"), mask, None, 2)
    assert not fill_matters(-1e9, mask[:1], None, 2)
    assert fill_matters(-1e9, mask, None, 2)
    assert fill_matters(-50.0, mask[:1], None, 2)
    assert fill_matters(-1e9, mask[:1], "top_left", 2)
    assert not fill_matters(-5.0, None, None, 2)


def run_subject(attention: Attention, attention_stub: str = "") -> tuple[Verdict, Failure | None]:
    request = Check(1, plain(), ("s",), attention_stub=attention_stub or source("return attend(q, k, v, scale=0.25)"))
    result = check(request, {"s": Subject("s", attention=attention)}, "cpu", lambda _: None, lambda: 0.0)
    return result.results[0].verdict, result.results[0].failure


def test_a_function_that_cannot_be_imported_is_skipped_with_the_reason() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'nowhere'")

    refused = NotTaken(Refusal.UNSUPPORTED, "can't be imported: No module named 'nowhere'")
    assert run_subject(Attention(missing)) == (Verdict.SKIPPED, refused)
