"""Factories of modules, good and bad, for the tests of imports."""

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.importing.decoder import RMSNorm, decoder
from tests.importing.structured import Made, Rounded


def rotate_half(x: Tensor) -> Tensor:
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-right, left), dim=-1)


class Attention(nn.Module):
    """Grouped heads, rotary positions, a causal mask and padding."""

    frequencies: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, self.head_dim, 2) / self.head_dim))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        angles = torch.arange(length, device=x.device).float()[:, None] * self.frequencies[None]
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        kept = torch.ones(length, length, dtype=torch.bool, device=x.device).tril() & keep[:, None, None, :]
        scores = scores.masked_fill(~kept, torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out: Tensor = self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))
        return out


class ComplexRotary(nn.Module):
    """Pairs turned by complex numbers, as in Llama 4: a buffer's and a caller's."""

    freqs_cis: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.1])
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(numbers * self.freqs_cis[: x.shape[1], :]).flatten(2)
        return turned.type_as(x).softmax(-1) @ x.mT, by * self.freqs_cis[1]


class Block(nn.Module):
    """A transformer block with SwiGLU."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.norm2, self.attn = RMSNorm(width), RMSNorm(width), Attention(width, heads=4, kv_heads=2)
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down, self.dropout = nn.Linear(3 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x), keep)
        h = self.norm2(x)
        out: Tensor = x + self.dropout(self.down(functional.silu(self.gate(h)) * self.up(h)))
        return out


class Stack(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, keep)
        return x


def _given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[0, :5] = False
    return torch.randn(2, 11, 32, requires_grad=True), keep


def rotary() -> Made:
    return ComplexRotary().eval(), (
        torch.randn(2, 3, 4, dtype=torch.bfloat16),
        torch.randn(3, 2, dtype=torch.complex64),
    )


def block() -> Made:
    return Block().eval(), _given()


def training() -> Made:
    return Block(), _given()


def cached() -> Made:
    """In training, with gradients through a cache."""
    module, given = decoder()
    return module.train(), given


def stack() -> Made:
    return Stack().eval(), _given()


class Plain(nn.Module):
    """Attention as Inductor's first pattern has it, with a cache of earlier keys."""

    earlier: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("earlier", torch.zeros(2, 2, 3, 8))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        out = scores.softmax(dim=-1) @ v
        self.earlier.copy_(k[:, :, :3])
        return out


def plain() -> Made:
    torch.manual_seed(1)
    return Plain().eval(), tuple(torch.randn(2, 2, 7, 8) for _ in range(3))


class Written(nn.Module):
    """Attention in operations, which gives a tuple of one. Takes keywords, and a number and None among these."""

    def forward(self, q: Tensor, k: Tensor, *, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor]:
        assert mask is None
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / scale
        return ((scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2),)


def written_training() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 7, 3, 8) for _ in range(3))
    return Written(), (q, k), {"v": v, "scale": 3.0, "mask": None}


class Operations(nn.Module):
    """Calls that released models make, each in a spelling of theirs."""

    def forward(self, x: Tensor, ids: Tensor, keep: Tensor) -> list[Tensor]:
        y, places = x.abs() + 0.5, ids.argsort(-1)
        values, order = torch.topk(x, 2)
        largest = x.topk(k=3, dim=1, largest=False, sorted=True)
        ranked = torch.sort(x, dim=-1, descending=True, stable=True)
        steps = torch.arange(0, 8, 2, dtype=torch.float32)
        made = [
            *(values, order, *largest, *ranked, functional.glu(x), functional.glu(x, 1), 10000**x, 2.0**-y, y**x),
            *(torch.pow(y, 0.5), 10000.0 ** -(steps / 8), torch.arange(0.5, 3.0), torch.arange(5, 0, -2)),
            *(torch.linspace(0, 1, 6), torch.linspace(0.5, 5.5, steps=6), torch.eye(4), torch.eye(3, 5)),
            *(x.cumsum(-1, dtype=torch.float64), ids.int().cumsum(1), keep.cumsum(-1), x.sum(-1, dtype=torch.float64)),
            *(
                keep.mean(-1, dtype=torch.float32),
                x.prod(1, dtype=torch.float64),
                x.norm(1, dim=-1),
                x.norm(p=math.inf),
            ),
            *(torch.linalg.vector_norm(x, 1, dim=(0, 2)), torch.linalg.norm(x[0], ord=math.inf, dim=1)),
            *(ids.masked_fill(keep, -1), keep.masked_fill(~keep, True), keep & True, keep | False, keep ^ True),
            *(
                x.clamp(y - 1, y),
                x.clamp(max=y),
                torch.clamp_max(x, 0.5),
                x.clip(-1, 1),
                torch.where(keep, x, y.mean()),
            ),
            *(torch.atan2(x, y), torch.fmod(x, 0.5), torch.fmod(x, y), x.isnan(), x.isinf(), torch.isfinite(x)),
            *(torch.nan_to_num(x / 0, nan=0.0, posinf=1.0), x.lerp(y, 0.3), torch.lerp(x, y, y), x.diff(dim=1)),
            *(torch.diff(ids, prepend=ids[..., :1] - 1, dim=-1), torch.addcmul(x, x, y, value=0.5), x.addcdiv(x, y)),
            *(
                x.tile(2),
                x.tile((2, 1, 1, 3)),
                torch.tile(x, (1, 2)),
                ids.repeat_interleave(2),
                ids[0, 0].repeat_interleave(3),
            ),
            *(x.scatter(-1, places, y), torch.scatter(x, 2, places, 0.5), x.scatter_add(-1, places, y)),
            *(functional.pad(x, (1, 2), mode="reflect"), functional.pad(x, (1, 2), mode="replicate")),
            *(functional.pad(x, (2, 1), mode="circular"), torch.einsum("...ij->...ji", x), torch.einsum("bij->b", x)),
            *(
                torch.einsum("...i,...i->...", x, y),
                torch.einsum("b i j, j -> b i", x, x[0, 0]),
                torch.einsum("bij,bkj", x, y),
            ),
        ]
        return made + self._write(x, places, keep)

    def _write(self, x: Tensor, places: Tensor, keep: Tensor) -> list[Tensor]:
        written = [(x + number).abs() for number in range(16)]
        written[0].sub_(x)
        written[1] -= 2
        written[2].div_(3)
        written[3] /= x
        written[4].pow_(2)
        written[5] **= 0.5
        written[6].relu_().sqrt_().neg_()
        torch.sigmoid_(written[7])
        functional.leaky_relu_(written[8], 0.2)
        written[9].clamp_(min=0.5)
        written[10].zero_()
        written[11].fill_(0.25)
        written[12][:] = 3.0
        written[13].scatter_(-1, places, x)
        written[14].scatter_(2, places, 1.5)
        written[15].scatter_add_(-1, places, x).masked_fill_(keep, 0)
        return written


class Rarer(nn.Module):
    """Calls that few kinds of released models make."""

    def forward(self, x: Tensor, ids: Tensor, keep: Tensor) -> list[Tensor]:
        order, filters = ids[0, 0].argsort(-1), x[:, :1, :3].abs()
        cosines, targets = torch.stack([x, x.cos()]), [x + 1.0, x.abs(), ids.clone(), x.clone(), x.clone()]
        turned = cosines[0]
        turned[..., 1:6:3] = cosines[1, ..., 1:6:3]
        targets[0][..., order] = x.exp()
        targets[1][:, 1][:, order] = 2 * x[:, 1]
        targets[2][0, 0][order] = torch.arange(6)
        targets[3][keep] = 0.5
        targets[4][keep[:, 0, :4]] = 2
        hidden = keep.clone()
        hidden[0], hidden[1, :, 2:4] = True, False
        loose: Any = torch
        counts = torch.tensor([2, 0, 1, 3])
        triangle = x[:, :, :4] / 8
        return [
            *torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
            *torch.meshgrid([ids[0, 0], ids[0, :, 0]], indexing="xy"),
            *(torch.tensor([1, -3]), torch.tensor(False), torch.as_tensor(x), torch.as_tensor(keep, dtype=x.dtype)),
            *(x[:, :, [0, -2]], x[[1]], x.flip(-1), torch.greater(x, 0), x.index_add(2, order, x)),
            *(torch._weight_norm(x, x[:1, :1], 2), torch.linalg.solve_triangular(triangle, x, upper=True)),
            functional.conv1d(x, x[:, :2, :3], padding="same", groups=2),
            functional.conv1d(x[:, :1], filters[..., :2], padding="same"),
            functional.conv1d(x[:, :1], filters, padding="valid"),
            functional.conv3d(x[None, None], x[None, None, :1, :2, :2], stride=(1, 2, 1)),
            functional.grid_sample(x[:, None], x[:, :3, :2][:, None], align_corners=True),
            functional.scaled_dot_product_attention(x[:, None], x[:1, None], x[:1, None]),
            x.scatter_reduce(-1, ids.argsort(-1), x.exp(), "amax", include_self=False),
            *(functional.relu(x.cos(), inplace=True), functional.hardswish(x.cos(), True), x.sin().erfinv()),
            *(functional.leaky_relu(x.cos(), 0.2, True), loose.Tensor.unflatten(x, -1, (2, 3)), x.mul(9).abs().byte()),
            *(x.repeat_interleave(counts, 1), x.repeat_interleave(counts[:1], dim=0), loose.arange(counts.sum())),
            *(torch.logical_and(ids, keep), ids.all(-1), ids.logical_not(), ids.masked_fill(keep, 2.0)),
            *(*loose.broadcast_tensors(x, x[0, 0]), torch.asarray(x), x.type_as(x), x.type_as(ids)),
            *(*targets, cosines, hidden),
        ]


def rarer() -> Made:
    return Rarer().eval(), operations()[1]


def operations() -> Made:
    torch.manual_seed(1)
    keep = torch.rand(2, 4, 6) < 0.5
    return Operations().eval(), (torch.randn(2, 4, 6), torch.randint(0, 6, (2, 4, 6)), keep)


class Experts(nn.Module):
    """A mixture of experts as transformers computes it: rows in the order of their experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weight = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).softmax(-1).topk(2)
        ranked, order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(ranked.float(), bins=4, min=0, max=3)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        made = functional.grouped_mm(x[order // 2], self.weight, offs=ends) * scores.reshape(-1)[order].unsqueeze(-1)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.size(0))
        out: Tensor = made[place].view(-1, 2, 8).sum(1)
        return out


def experts() -> Made:
    torch.manual_seed(1)
    return Experts(), (torch.randn(10, 16, requires_grad=True),)


class Running(nn.Module):
    """Attention around a call that no case can say, and that reads data."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        order = torch.sinc(k)
        scale = 0.3 if bool(k.sum(-1).sum(-1).sum(-1)[0] > -1e9) else 0.5
        return functional.scaled_dot_product_attention(q, order, v, scale=scale)


class Counting(nn.Module):
    """Attention whose scale depends on how often it has run, and that keeps a cache in its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, q: Tensor, k: Tensor, cache: list[Tensor]) -> Tensor:
        self.runs += 1
        cache.append(k)
        return functional.scaled_dot_product_attention(
            q, torch.cat(cache, 2), torch.cat(cache, 2), scale=1.0 / self.runs
        )


def counting() -> Made:
    torch.manual_seed(1)
    return Counting().eval(), (torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8), [torch.randn(2, 2, 4, 8)])


class Cast(nn.Module):
    """A block under an autocast of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.block(x, keep)
        return out


def cast() -> Made:
    return Cast().eval(), _given()


def idle() -> Made:
    return nn.Identity(), (torch.randn(2),)


class Varied(nn.Module):
    """Numbers as arguments, in formulas and as a size, and bytes read as another dtype."""

    def forward(self, x: Tensor, scale: float, power: int, least: float, groups: int) -> tuple[Tensor, Tensor]:
        scores = (x * scale).clamp(min=-least) / (power + 1)
        return scores.view(groups, -1) + power, (x > 0).to(torch.int8).view(torch.uint8)


def varied() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Varied().eval(), (torch.randn(4, 6), 0.5, 3), {"least": 0.25, "groups": 2}


class Casts(nn.Module):
    """An autocast within the module, off again inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = self.second(y)
            with torch.autocast(x.device.type, enabled=False):
                y = y.float() @ x
            y = y @ x
        out: Tensor = y + 1
        return out


def casts() -> Made:
    return Casts(), (torch.randn(8, 8),)


class Special(nn.Module):
    """Functions that torch traces or calls specially."""

    def forward(self, x: Tensor) -> Tensor:
        y = Rounded.apply(x * 2) + checkpoint(torch.sin, x, use_reentrant=False)  # type: ignore[no-untyped-call]
        out: Tensor = torch.compiler.nested_compile_region(lambda value: value.cos())(y) + y.exp()
        return out


def special() -> Made:
    return Special().eval(), (torch.randn(4, 6),)


def special_in_training() -> Made:
    return Special(), (torch.randn(4, 6, requires_grad=True),)


class Transforms(nn.Module):
    """All calls are made by transforms and by what eager compiles."""

    def forward(self, x: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        made: Tensor = torch.cond(truth, torch.sin, torch.cos, (x,))
        return torch.vmap(torch.tanh)(x), made


def transforms() -> Made:
    return Transforms().eval(), (torch.randn(4, 6), torch.tensor(True))


def left_out() -> Made:
    return Running().eval(), plain()[1]


def raises() -> Made:
    raise RuntimeError("no such weights")


def raises_later() -> Made:
    return Block().eval(), (torch.randn(2, 11, 31), torch.ones(2, 11, dtype=torch.bool))


def hangs() -> Made:
    time.sleep(1000)
    return block()


def prints() -> Made:
    print("loading")  # noqa: T201 - it must not break the protocol
    return block()


def gives_a_module() -> nn.Module:
    return Block()


def exits() -> Made:
    raise SystemExit(7)


not_a_function = 5
