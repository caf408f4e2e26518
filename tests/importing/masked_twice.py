"""A module that needs the structure of its inputs."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class MaskedTwice(nn.Module):
    """An int64 mask of tokens, and an additive mask whose rows of padding keep nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 48)

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.proj(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        kept = v * tokens[:, None, :, None]
        return functional.scaled_dot_product_attention(q, k, kept, attn_mask=mask[:, None])


def masked_twice() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Prompts of two lengths, padded from the left."""
    torch.manual_seed(0)
    tokens = (torch.arange(20) >= torch.tensor([[0], [7]])).long()
    mask = torch.where(tokens[:, None, :] * tokens[:, :, None] == 1, 0.0, -math.inf)
    return MaskedTwice().train(), (torch.randn(2, 20, 16), tokens, mask)
