"""Adapters of attention in other packages to the signatures and capabilities of docs/kernels.md."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

HEAD_DIMS = (8, 16, 32, 40, 64, 80, 96, 128, 192, 256)
"""Multiples of 8, which many kernels need: head_dims of models, and the smallest."""


def import_adapted(module: str, distribution: str) -> Any:
    """A module of an installed distribution. Raises ImportError with the missing distribution and the interpreter."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs {distribution} in {sys.executable}: {error}") from error


def require(holds: object, limit: str) -> None:
    """Raise NotImplementedError, with `limit` as text, unless the condition holds."""
    if not holds:
        raise NotImplementedError(limit)


def read_window(causal: str | None, window: tuple[int, int] | None) -> tuple[int, int]:
    """(left, right): the numbers of keys that a query keeps on each side of its own position, -1 for all."""
    left, right = window or (-1, -1)
    return left, 0 if causal else right


def add_axes(option: Tensor | None) -> Tensor | None:
    """A mask or bias with four axes, for functions that broadcast no others."""
    return None if option is None else option.reshape((1,) * (4 - option.dim()) + option.shape)


def refuse_empty_rows(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A dense attention function that refuses a call with a row that keeps no key; `__wrapped__` takes the call.

    For functions that give such a row the mean of the values, where attnfuzz expects 0.
    """

    @functools.wraps(attend)
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        causal, (left, right) = options.get("causal"), read_window(options.get("causal"), options.get("window"))
        offset = k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
        keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        keep = keep if left < 0 else keep.triu(offset - left)
        keep = keep if right < 0 else keep.tril(offset + right)
        mask = options.get("mask")
        require((keep if mask is None else keep & mask).any(-1).all(), "a row that keeps no key")
        return attend(q, k, v, **options)

    return attention


def call_foreign(
    forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor | None, ...]], *inputs: Tensor | None
) -> Tensor:
    """`forward(*inputs)`, whose gradients are `backward(gradient, *inputs)`; both get detached tensors."""
    out: Tensor = _Foreign.apply(forward, backward, *inputs)
    return out


class _Foreign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *inputs: Tensor | None) -> Tensor:
        ctx.run_backward = backward
        ctx.save_for_backward(*inputs)
        out: Tensor = forward(*inputs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.run_backward(gradient, *ctx.saved_tensors)
