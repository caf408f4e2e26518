"""What planted faults are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


def declares(**capabilities: Any) -> Callable[[Function], Function]:
    """Gives a function its `capabilities`."""

    def declare(function: Function) -> Function:
        function.capabilities = capabilities  # type: ignore[attr-defined]
        return function

    return declare


def with_gradient(value: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """A copy of a value. In its backward pass `change` takes the gradient, and gives that of the value."""
    out: Tensor = _WithGradient.apply(value, change)  # type: ignore[no-untyped-call, unused-ignore]
    return out


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
        ctx.change = change
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.change(gradients[0]), None
