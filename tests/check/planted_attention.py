"""Attention functions, one right and the others with a known fault, given to workers as
`tests.check.planted_attention:name`."""

from typing import Any

import torch
from torch import Tensor


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
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1).float() for x in (k, v))
    scores = scale * (q.float() @ keys.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal is not None:
        keep = keep.tril(0 if causal == "top_left" else k.shape[2] - q.shape[2])
    if mask is not None:
        keep = keep & mask
    scores = scores.masked_fill(~keep, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ values).to(q.dtype)


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
    out: Tensor = _BesideDv.apply(q, k, v, scale)  # type: ignore[no-untyped-call, unused-ignore]
    return out


class _BesideDv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return right(q, k, v, scale=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            out = right(q, k, v, scale=ctx.scale)
        dq, dk, grad = torch.autograd.grad(out, (q, k, v), gradients)
        dv = torch.zeros_like(v)
        dv.copy_(grad)
        dv.as_strided((dv.numel() + 7,), (1,), dv.storage_offset())[dv.numel() :] = 0.0
        return dq, dk, dv, None


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


def refusing(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Refuses by an assertion, as it declares."""
    return asserting(q, k, v, scale=scale)


refusing.capabilities = {"refuses": ("AssertionError", "mine.Refused")}  # type: ignore[attr-defined]


def small_heads(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Takes head_dim up to 8."""
    return right(q, k, v, scale=scale)


small_heads.capabilities = {"max_head_dim": 8, "dtypes": ("float32",)}  # type: ignore[attr-defined]


def boastful(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """Declares what nobody asked for."""
    return right(query, key, value, scale=scale)


boastful.capabilities = {"max_heads": 8}  # type: ignore[attr-defined]


def vague(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Declares dtypes in a way that means nothing."""
    return right(q, k, v, scale=scale)


vague.capabilities = {"dtypes": "bfloat16"}  # type: ignore[attr-defined]


def turned(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Gives heads and rows the other way round, which text around it may not notice."""
    return right(q, k, v, scale=scale).transpose(1, 2)


def mean_of_hidden(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """Gives a row that keeps no key the mean of all values."""
    out = right(q, k, v, scale=scale, mask=mask)
    hidden = torch.zeros_like(out[..., :1], dtype=torch.bool) if mask is None else ~mask.any(-1, keepdim=True)
    return torch.where(hidden, v.mean(-2, keepdim=True), out)


SUBJECTS = tuple(
    f"{__name__}:{function.__name__}"
    for function in (
        right,
        without_last_key,
        too_far,
        unwritten,
        scaling_in_place,
        beside_dv,
        first_rows,
        only_float64,
        crashing,
        asserting,
        refusing,
        small_heads,
        turned,
    )
)
