"""Attention that rounds as kernels do: the same values, and the leave it gives them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.attention.function import Attention
from fuzz.check.attention.streaming import streaming
from fuzz.check.check import check
from fuzz.check.subjects.subject import Subject
from fuzz.protocol import Check, Verdict
from tests.check.planted_attention import right, without_last_key
from tests.check.sources import source

OPTIONS: list[dict[str, Any]] = [
    {}, {"causal": "top_left"}, {"causal": "bottom_right"}, {"bias": torch.randn(5, 7)}, {"mask": torch.rand(2, 4, 5, 7) > 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str([*options]))
def test_it_computes_attention(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(*shape, requires_grad=True) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)))
    results = [function(q, k, v, scale=0.3, **options) for function in (right, streaming)]
    upstream = torch.randn(2, 4, 5, 6)
    gradients = [torch.autograd.grad(result, (q, k, v), upstream) for result in results]
    for mine, theirs in zip((results[0], *gradients[0]), (results[1], *gradients[1]), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


class _Recomputing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lse = (q @ k.transpose(-2, -1)).logsumexp(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, lse)
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        q, k, v, lse = ctx.saved_tensors
        (dout,) = gradients
        p = (q @ k.transpose(-2, -1) - lse).exp()
        ds = p * (dout @ v.transpose(-2, -1) - (dout * (p @ v)).sum(-1, keepdim=True))
        return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ dout


def recomputing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    out: Tensor = _Recomputing.apply(q * scale, k, v)  # type: ignore[no-untyped-call]
    return out


def test_weights_recomputed_from_large_scores_are_rounding_and_a_lost_key_is_not() -> None:
    large = ("q, k = q * 30.0, k * 30.0",)
    text = source(*large, "return (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v")
    request = Check(1, text, ("r", "l"), training=True, stand_in=source(*large, "return attend(q, k, v, scale=0.25)"))
    functions = {"r": recomputing, "l": without_last_key}
    subjects = {name: Subject(name, attention=Attention(lambda f=f: f)) for name, f in functions.items()}  # type: ignore[misc]
    recomputed, lost = check(request, subjects, "cpu", lambda _: None, lambda: 0.0).results
    assert recomputed.verdict == Verdict.ROUNDING, recomputed.message
    assert lost.verdict == Verdict.WRONG_RESULT
