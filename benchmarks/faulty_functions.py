"""Attention in float64, rounded once, and functions that spoil it in one way each: subjects whose findings are known.

python -m fuzz.run --subject benchmarks.faulty_functions:ignores_scale --budget 1m
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

FUNCTIONS = {
    "ignores_scale": "wrong_result",
    "spoils_wide_heads": "nonfinite",
    "raises_on_grouped_heads": "runtime_error",
    "crashes_on_one_key": "worker_died",
}
"""The functions with a fault, and the verdict that a campaign reaches on each."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None, bias: Tensor | None, causal: str | None
) -> Tensor:
    """Attention by its definition (docs/kernels.md): q [batch, heads, seq_len, head_dim], k and v with as many heads or
    fewer.

    Returns [batch, heads, seq_len, value_dim] in the dtype of q. A row that keeps no key gives 0.
    """
    groups = q.shape[1] // k.shape[1] if k.shape[1] else 1
    keys, values = (x.double().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = scale * (q.double() @ keys.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias.double()
    if causal is not None:
        offset = k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(offset + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    return (weights @ values).to(q.dtype)


def spoil(fault: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An attention function that has the fault: `fault` gets q, k and right attention, of any scale."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: str | None = None,
    ) -> Tensor:
        def compute(scale: float = scale) -> Tensor:
            return attend(q, k, v, scale=scale, mask=mask, bias=bias, causal=causal)

        return fault(q, k, compute)

    attention.__name__ = attention.__qualname__ = fault.__name__
    return attention


@spoil
def ignores_scale(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:  # noqa: ARG001 - q alone matters
    """Always scales by 1 / sqrt(head_dim)."""
    return compute(max(q.shape[-1], 1) ** -0.5)


@spoil
def spoils_wide_heads(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:  # noqa: ARG001 - q alone matters
    """Gives NaN from a head_dim of 9 on."""
    return compute() * torch.nan if q.shape[-1] > 8 else compute()


@spoil
def raises_on_grouped_heads(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Raises where keys have fewer heads."""
    if k.shape[1] != q.shape[1]:
        raise RuntimeError("heads differ")
    return compute()


@spoil
def crashes_on_one_key(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:  # noqa: ARG001 - k alone matters
    """Reads address 0 where there is a single key."""
    if k.shape[2] == 1:
        ctypes.string_at(0)
    return compute()
