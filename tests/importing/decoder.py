"""The block of a language model as its author writes it, without a thought of attnfuzz."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    cache: Tensor

    def __init__(self, dim: int, heads: int, kv_heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache", torch.randn(2, 2, kv_heads, length, self.head_dim))

    def forward(self, x: Tensor, start: int, keep: Tensor) -> Tensor:
        batch, new, _ = x.shape
        end, groups = start + new, self.heads // self.kv_heads
        qkv = self.qkv(x).view(batch, new, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        steps = torch.arange(0, self.head_dim, 2, device=x.device) / self.head_dim
        angles = torch.arange(start, end, device=x.device)[:, None] / 10000.0**steps
        q, k = rotate(q, angles.cos(), angles.sin()), rotate(k, angles.cos(), angles.sin())
        self.cache[0, :, :, start:end], self.cache[1, :, :, start:end] = k, v
        k, v = self.cache[0, :, :, :end], self.cache[1, :, :, :end]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = (q @ k.transpose(-2, -1)) * self.head_dim**-0.5
        causal = torch.ones(new, end, dtype=torch.bool, device=x.device).tril(start)
        scores = scores.masked_fill(~(causal & keep[:, None, None, :end]), torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


class Decoder(nn.Module):
    def __init__(self, dim: int = 64, heads: int = 4, kv_heads: int = 2, length: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.attn = Attention(dim, heads, kv_heads, length)
        self.gate, self.up, self.down = nn.Linear(dim, 160), nn.Linear(dim, 160), nn.Linear(160, dim)

    def forward(self, x: Tensor, start: int, keep: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            x = x + self.attn(self.norm1(x), start, keep)
            h = self.norm2(x)
            out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


def decoder() -> tuple[nn.Module, tuple[Tensor, int, Tensor]]:
    torch.manual_seed(0)
    keep = torch.ones(2, 32, dtype=torch.bool)
    keep[0, :3] = False
    return Decoder().eval(), (torch.randn(2, 7, 64), 9, keep)
