"""Weights that round alike: errors add up in right kernels, which are not accused; wrong ones still are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fuzz.check.judge.attention.judge import judge
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import load_sdpa as function
from fuzz.protocol import Verdict

FLASH = ("weights", "sums", "exponentials")
Function = Callable[..., Tensor]


def simulated(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """A flash kernel with one block of keys."""
    scores = (q.float() @ k.float().mT) * scale
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((p.to(q.dtype).float() @ v.float()) / p.sum(-1, keepdim=True)).to(q.dtype)


def called(attend: Function, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Call:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves, scale=scale)
    call = Call(q, k, v, {"scale": scale}, out.detach(), wanted=("dq", "dk", "dv"), differentiable=True)
    call.dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)
    call.gradients = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, call.dout), strict=True))
    return call


def two_groups(apart: float = 0.3) -> tuple[Tensor, Tensor, Tensor, float]:
    """512 keys of two scores, with values that cancel."""
    first = 218
    q, k, v = torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 512, 16), torch.ones(1, 1, 512, 16)
    q[..., 0], k[:, :, first:, 0], v[:, :, first:] = 1.0, -apart, -1.0
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), 1.0


def tokens(rows: int = 1024) -> tuple[Tensor, Tensor, Tensor, float]:
    """Embeddings of tokens drawn from a vocabulary of 16."""
    chance = torch.Generator().manual_seed(0)
    embedded = [torch.randn(16, 32, generator=chance).bfloat16() for _ in range(3)]
    drawn = torch.randint(16, (1, 1, rows), generator=chance)
    q, k, v = (table[drawn] for table in embedded)
    return q[:, :, :64], k, v, 32**-0.5


INPUTS = pytest.mark.parametrize(
    "given", [two_groups(), two_groups(0.9), tokens()], ids=["two groups", "further apart", "tokens"]
)


@INPUTS
@pytest.mark.parametrize("attend", [function("FLASH_ATTENTION"), simulated], ids=["flash on CPU", "simulated"])
def test_right_kernels_are_right(attend: Function, given: tuple[Tensor, Tensor, Tensor, float]) -> None:
    judgement = judge(called(attend, *given), FLASH)
    assert judgement.verdict in (Verdict.OK, Verdict.ROUNDING), judgement.failure


@INPUTS
def test_wrong_ones_are_wrong(given: tuple[Tensor, Tensor, Tensor, float]) -> None:
    def without_last_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        return simulated(q, k[:, :, :-16], v[:, :, :-16], scale=scale)

    def a_zeroed_row(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        out = simulated(q, k, v, scale=scale)
        return torch.cat([torch.zeros_like(out[:, :, :1]), out[:, :, 1:]], 2)

    assert judge(called(without_last_keys, *given), FLASH).verdict.is_finding
    assert judge(called(a_zeroed_row, *given), FLASH).verdict.is_finding
