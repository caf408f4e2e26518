"""Attention functions, one right and the others with a known fault, given to workers as
`tests.check.planted_attention:name`."""

import torch
from torch import Tensor

from tests.check.faults import declares, with_gradient
from tests.kernels.reference import math_attention


def right(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: str | None = None,
) -> Tensor:
    """Attention as everybody writes it, with a row that keeps no key 0."""
    return math_attention(q, k, v, scale=scale, mask=mask, bias=bias, causal=causal)


def without_last_key(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Loses the last key."""
    return right(q, k[:, :, :-1], v[:, :, :-1], scale=scale)


def too_far(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Writes three elements after its output, and two before it."""
    out = torch.empty_like(q)
    out.copy_(right(q, k, v, scale=scale))
    first, count = out.storage_offset(), out.numel()
    out.as_strided((count + 5,), (1,), first - 2)[:2] = 1.0
    out.as_strided((count + 3,), (1,), first)[count:] = 1.0
    return out


def unwritten(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Leaves the last row of every head as it was allocated."""
    out = q.new_empty(q.shape)
    out[:, :, :-1] = right(q, k, v, scale=scale)[:, :, :-1]
    return out


def scaling_in_place(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Scales q where it lies."""
    q.mul_(scale)
    return right(q, k, v, scale=1.0)


def beside_dv(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Right, and its backward pass writes after the gradient of v."""

    def write_beside(gradient: Tensor) -> Tensor:
        dv = torch.zeros_like(gradient)
        dv.copy_(gradient)
        dv.as_strided((dv.numel() + 7,), (1,), dv.storage_offset())[dv.numel() :] = 0.0
        return dv

    return right(q, k, with_gradient(v, write_beside), scale=scale)


def first_rows(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """The gradient of q is wrong in the first five rows of all heads after the first."""
    wrong = torch.zeros_like(q)
    wrong[:, 1:, :5] = 1.0
    return right(q + (q - q.detach()) * wrong, k, v, scale=scale)


def only_float64(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Refuses when it is called."""
    raise NotImplementedError("wants float64")


def crashing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Raises when it runs."""
    raise ValueError("no such tile")


def asserting(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Asserts something without saying what."""
    assert q.shape[1] != k.shape[1]
    return right(q, k, v, scale=scale)


@declares(refuses=("AssertionError", "mine.Refused"))
def refusing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Refuses by an assertion, as it declares."""
    return asserting(q, k, v, scale=scale)


@declares(max_head_dim=8, dtypes=("float32",))
def small_heads(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Takes head_dim up to 8."""
    return right(q, k, v, scale=scale)


def turned(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Gives heads and rows the other way round, which text around it may not notice."""
    return right(q, k, v, scale=scale).transpose(1, 2)


SUBJECTS = tuple(
    f"{__name__}:{name}"
    for name, value in list(globals().items())
    if not name.startswith("_") and getattr(value, "__module__", "") == __name__
)


def mean_of_hidden(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """Gives a row that keeps no key the mean of all values."""
    out = right(q, k, v, scale=scale, mask=mask)
    hidden = torch.zeros_like(out[..., :1], dtype=torch.bool) if mask is None else ~mask.any(-1, keepdim=True)
    return torch.where(hidden, v.mean(-2, keepdim=True), out)
