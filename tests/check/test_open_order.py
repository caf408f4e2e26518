"""An order that the documentation of torch leaves open: of equal elements, of writes into one place."""

from typing import Any

import pytest
from torch import Tensor, nn

from fuzz.check.oracle.modes import ReversedOrder
from fuzz.check.subject_builder import Subject
from fuzz.protocol import Verdict
from tests.check.in_process import run_subject
from tests.check.sources import source


def reverse_order(module: nn.Module, _dynamic: bool | None) -> Any:
    def run(*inputs: Tensor) -> Any:
        with ReversedOrder():
            return module(*inputs)

    return run


def count_from_one(module: nn.Module, _dynamic: bool | None) -> Any:
    return lambda *inputs: module(*inputs) + 1


def turn_round(module: nn.Module, _dynamic: bool | None) -> Any:
    return lambda *inputs: module(*inputs).flip(-1)


@pytest.mark.parametrize(
    "body",
    [
        "(q > 0).long().sort(dim=-1).indices",
        "(q > 0).int().argsort(dim=-1)",
        "(q > 0).to(q.dtype).topk(3).indices",
        "q.clone().index_copy_(2, torch.zeros(S, dtype=torch.int64), k)",
        "q.clone().index_put_((torch.zeros(B, dtype=torch.int64),), k)",
    ],
)
def test_another_order_that_is_left_open_is_no_finding(body: str) -> None:
    subject = Subject("package.module:planted", reverse_order)
    assert run_subject(subject, text=source(f"return {body}")).verdict is Verdict.CONVENTION


@pytest.mark.parametrize(
    ("body", "compiled"),
    [
        ("q.sort(dim=-1).indices", count_from_one),
        ("(q > 0).long().sort(dim=-1, stable=True).indices", turn_round),
        ("(q > 0).long().sort(dim=-1).values", turn_round),
        ("q.clone().index_copy_(2, torch.arange(S), k)", turn_round),
        ("q.clone().index_put_((torch.zeros(B, dtype=torch.int64),), k, accumulate=True)", turn_round),
    ],
    ids=["no two are equal", "a stable sort", "the values", "each place once", "a sum"],
)
def test_what_does_not_depend_on_it_is_one(body: str, compiled: Any) -> None:
    subject = Subject("package.module:planted", compiled)
    assert run_subject(subject, text=source(f"return {body}")).verdict is Verdict.WRONG_RESULT
