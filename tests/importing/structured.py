"""Modules whose own arguments have the structures of `benchmarks.planted_torch`: no random numbers have these."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Any, ...]]


class Attention(nn.Module):
    """Heads of 8, and a mask in any of the forms that callers give."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if mask is not None and mask.dtype is torch.int64:
            mask = mask[:, None, None, :].bool()
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.out(made.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention in a residual stream."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        made: Tensor = x + self.attn(self.norm(x), mask)
        return made


class Cached(nn.Module):
    """One step over a cache that is longer than what it holds."""

    def forward(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = (q @ keys.transpose(-1, -2)) * 0.25
        kept = torch.arange(keys.shape[2]) < 3
        made: Tensor = scores.masked_fill(~kept, -1e9).softmax(-1) @ values
        return made


class Packed(nn.Module):
    """Sequences one after another: a token sees its own sequence."""

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        own = segments[:, None] == segments[None]
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=own)


def row_masked() -> Made:
    """The padding row of an additive mask keeps nothing."""
    mask = torch.zeros(2, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    mask[0, :, :2] = torch.finfo(torch.float32).min
    return Layer().eval(), (torch.randn(2, 6, 16), mask)


def padded_left() -> Made:
    """In training, prompts of two lengths."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    return Layer(), (torch.randn(2, 6, 16, requires_grad=True), mask)


def tail_unused() -> Made:
    keys, values = torch.zeros(2, 2, 8, 16), torch.zeros(2, 2, 8, 16)
    keys[:, :, :3], values[:, :, :3] = torch.randn(2, 2, 3, 16), torch.randn(2, 2, 3, 16)
    return Cached().eval(), (torch.randn(2, 2, 1, 16), keys, values)


def indices_sorted() -> Made:
    return Packed().eval(), (torch.randn(1, 2, 7, 16), torch.tensor([0, 0, 0, 1, 1, 2, 2]))


def channel_massive() -> Made:
    x = torch.randn(2, 6, 16)
    x[..., 3] *= 1000
    return Layer().eval(), (x,)


def rows_equal() -> Made:
    x = torch.randn(2, 6, 16)
    x[:, 4] = x[:, 3]
    return Layer().eval(), (x,)


def row_masked_in_training() -> Made:
    """The same in training, where torch's fused kernel gives wrong gradients."""
    module, (x, mask) = row_masked()
    return module.train(), (x.requires_grad_(), mask)


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity: no case can say it."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class StraightThrough(nn.Module):
    """Attention over quantised values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        apply: Any = Rounded.apply
        rounded: Tensor = apply(4 * v)
        return functional.scaled_dot_product_attention(q, k, rounded)


def straight_through() -> Made:
    return StraightThrough(), tuple(torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))


class Limited(nn.Module):
    """Adds what its dtype rounds away: in float64 that is another number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e6 * torch.finfo(x.dtype).eps


def limited() -> Made:
    return Limited().eval(), (torch.zeros(2, 3),)


class KeyCache:
    """Keys and values of earlier calls, and how many there are."""

    def __init__(self) -> None:
        self.keys, self.length = torch.zeros(1, 2, 8, 8), 0


class CacheWriter(nn.Module):
    """Attention that writes into an object among its arguments, and into one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = KeyCache()

    def forward(self, q: Tensor, cache: KeyCache) -> Tensor:
        for one in (cache, self.own):
            one.keys[:, :, one.length : one.length + q.shape[2]] = 2 * q
            one.length += q.shape[2]
        held = cache.keys[:, :, : cache.length]
        return functional.scaled_dot_product_attention(q, held, held)


def cache_written() -> Made:
    return CacheWriter().eval(), (torch.randn(1, 2, 3, 8), KeyCache())


class Spectrum(nn.Module):
    """Returns complex numbers."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.fft.rfft(x.softmax(-1))
        return made


def spectrum() -> Made:
    return Spectrum().eval(), (torch.randn(2, 4, 8),)


class Padded(nn.Module):
    """A model that is padded on the left: its mask of integers drops keys, and an added mask drops whole rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 16, padding_idx=1), nn.Embedding(16, 16)

    def forward(self, ids: Tensor, attention_mask: Tensor, position_ids: Tensor, added: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(position_ids)
        scores = (x @ x.mT)[:, None] + added
        scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, -1e4)
        out: Tensor = scores.softmax(-1) @ x[:, None]
        return out


def padded() -> Made:
    """As a tokenizer and a model of transformers make them of two prompts, 11 and 6 tokens long."""
    keep = torch.arange(11) >= torch.tensor([[0], [5]])
    seen = torch.ones(11, 11, dtype=torch.bool).tril() & keep[:, None, None]
    ids = torch.where(keep, torch.randint(2, 50, (2, 11), generator=torch.Generator().manual_seed(0)), 1)
    positions = (keep.long().cumsum(-1) - 1).masked_fill(~keep, 1)
    added = torch.zeros(2, 1, 11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)
    return Padded().eval(), (ids, keep.long(), positions, added)


class MaskedTwice(nn.Module):
    """An int64 mask of tokens, and an additive mask whose rows of padding keep nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 48)

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.proj(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        kept = v * tokens[:, None, :, None]
        return functional.scaled_dot_product_attention(q, k, kept, attn_mask=mask[:, None])


def masked_twice() -> Made:
    """Prompts of two lengths, padded from the left."""
    torch.manual_seed(0)
    tokens = (torch.arange(20) >= torch.tensor([[0], [7]])).long()
    mask = torch.where(tokens[:, None, :] * tokens[:, :, None] == 1, 0.0, -math.inf)
    return MaskedTwice().train(), (torch.randn(2, 20, 16), tokens, mask)
