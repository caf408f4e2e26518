"""Factories of modules whose arguments lie in one memory, which the module writes into."""

import torch
from torch import Tensor, nn

from tests.importing.structured import Made


class WrittenCache(nn.Module):
    """Adds to its cache, and reads it through an argument."""

    cache: Tensor

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        cache = torch.arange(24.0).reshape(6, 4)
        if buffer:
            self.register_buffer("cache", cache.clone())
        else:
            self.cache = nn.Parameter(cache.clone(), requires_grad=False)

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.add_(self.proj(x))
        return torch.relu(tail) + 1, tail.sum(0)


class WrittenArgument(nn.Module):
    def forward(self, cache: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        cache.mul_(3.0)
        return tail + 1, tail * 2


def of_buffer() -> Made:
    module = WrittenCache(buffer=True).eval()
    return module, (torch.ones(6, 4), module.cache[2:])


def of_parameter() -> Made:
    module = WrittenCache(buffer=False).eval()
    return module, (torch.ones(6, 4), module.cache[2:])


def of_argument() -> Made:
    cache = torch.arange(24.0).reshape(6, 4).clone()
    return WrittenArgument().eval(), (cache, cache[:, 1:3])


def transposed() -> Made:
    """A part that is no slice, which no case can express."""
    cache = torch.arange(24.0).reshape(6, 4).clone()
    return WrittenArgument().eval(), (cache, cache.t())
