"""The cases mistakes are looked for with: kinds of attention, each in the same six configurations of sizes and
values."""

from dataclasses import dataclass

from fuzz.protocol import Check

_TEXT = """
import torch
import torch.nn.functional as F
from torch import nn

B, H, K, S, T, D = {sizes}


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v{names}):
        {body}


def inputs():
    q = {q}
    k = {k}
    v = torch.randn((B, K, T, D), generator=rng(2))
    return [{inputs}]
"""
_EAGER = """i, j = torch.arange(S, device=q.device)[:, None], torch.arange(T, device=q.device)
k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
scores = (q @ k.transpose(-2, -1)) * {scale}
{shaping}
weights = scores.softmax(-1)
{dropping}
return weights @ v"""
_CAUSAL = "scores = scores.masked_fill(j > i, float('-inf'))"


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of attention: the lines that shape its scores, its call's keywords, and inputs beside q, k and v.

    `extra` is (name, expression, whether it takes the inputs' dtype). `body` replaces the whole text of eager.
    """

    shaping: str = _CAUSAL
    keywords: str = 'causal="top_left"'
    extra: tuple[str, str, bool] | None = None
    scale: float = 0.125
    heads: tuple[int, int] = (2, 2)
    shorter: int = 0
    wider: int = 0
    longer: int = 0
    dropout: float = 0.0
    body: str = ""


VARIANTS = {
    "causal": Variant(),
    "full": Variant("", ""),
    "bottom_right": Variant(
        "scores = scores.masked_fill(j > i + T - S, float('-inf'))", 'causal="bottom_right"', longer=16
    ),
    "negative_scale": Variant(scale=-0.5),
    "grouped": Variant(heads=(4, 2)),
    "tail": Variant("", "", shorter=12),
    "features": Variant(wider=8),
    "softcap": Variant(f"scores = 2.0 * torch.tanh(scores / 2.0)\n{_CAUSAL}", 'causal="top_left", softcap=2.0'),
    "window": Variant(
        "scores = scores.masked_fill((j > i) | (j < i - 20), float('-inf'))", 'causal="top_left", window=(20, 0)'
    ),
    "bias": Variant(
        "scores = scores + bias", "bias=bias", ("bias", "torch.randn((1, H, S, T), generator=rng(3))", True)
    ),
    "shared_bias": Variant(
        "scores = scores + bias", "bias=bias", ("bias", "torch.randn((1, 1, S, T), generator=rng(3))", True)
    ),
    "alibi": Variant(
        f"scores = scores - (slopes.detach()[:, None, None] * (i - j).abs()).to(q.dtype)\n{_CAUSAL}",
        'causal="top_left", alibi=slopes.detach()',
        ("slopes", "2.0 ** -torch.arange(3.0, 3.0 + H)", False),
    ),
    "sinks": Variant(
        f"{_CAUSAL}\nscores = torch.cat([scores, sinks.detach()[:, None, None].expand(B, H, S, 1)], -1)",
        'causal="top_left", sinks=sinks.detach()',
        ("sinks", "torch.randn((H,), generator=rng(3))", True),
    ),
    # Softmax alone would give NaN in the rows this is about.
    "empty_rows": Variant(
        keywords="mask=keep",
        extra=("keep", "(torch.arange(S) % 8 != 3)[:, None].expand(S, T).tril()", False),
        body="return F.scaled_dot_product_attention(q, k, v, keep, scale=0.125)",
    ),
    "dropout": Variant(f"{_CAUSAL}", 'causal="top_left", dropout=(0.2, 0)', dropout=0.2),
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sizes and values. `q` and `k` are what N(0, 1) is multiplied with or has added."""

    batch: int
    length: int
    dim: int
    q: str = ""
    k: str = ""


_OUTLIERS = " + 10.0 * torch.randn({0}, generator=rng({1})) * (torch.rand({0}, generator=rng({2})) < 0.02)"

CONFIGURATIONS = {
    "short": Configuration(2, 80, 32),
    "rising": Configuration(1, 192, 64, k=" * torch.linspace(0.2, 3.0, T)[:, None]"),
    "peaked": Configuration(1, 128, 64, q=" * 8.0"),
    "outliers": Configuration(
        1, 128, 64, _OUTLIERS.format("(B, H, S, D)", 4, 5), _OUTLIERS.format("(B, K, T, D)", 6, 7)
    ),
    "one_key": Configuration(1, 128, 64, k=" * torch.where(torch.arange(T) == T - 2, 10.0, 1.0)[:, None]"),
    "normal": Configuration(1, 512, 64),
}
SHARED = "normal"
"""The configuration that published criteria are tried with, as in the project's notes on numerics."""


def request(variant: str, configuration: str, dtype: str, subjects: tuple[str, ...]) -> Check:
    """What `fuzz.check.check.check` is asked: training, so that gradients are judged."""
    kind = VARIANTS[variant]
    eager = kind.body or _EAGER.format(
        scale=kind.scale,
        shaping=kind.shaping,
        dropping=f"weights = F.dropout(weights, {kind.dropout})" if kind.dropout else "",
    )
    if variant == "sinks":
        eager = eager.replace("weights @ v", "weights[..., :-1] @ v")
    keywords = f", {kind.keywords}" if kind.keywords else ""
    return Check(
        id=0,
        source=_source(eager, kind, CONFIGURATIONS[configuration], dtype),
        subjects=subjects,
        training=True,
        random=kind.dropout > 0,
        repeat=1,
        attention_stub=_source(
            f"return attend(q, k, v, scale={kind.scale}{keywords})", kind, CONFIGURATIONS[configuration], dtype
        ),
    )


def _source(body: str, kind: Variant, chosen: Configuration, dtype: str) -> str:
    heads, kv_heads = kind.heads
    length = chosen.length - kind.shorter
    sizes = (chosen.batch, heads, kv_heads, length, length + kind.longer, chosen.dim + kind.wider)
    cast = f".to(torch.{dtype})"
    given = [f"{name}{cast}" for name in ("q", "k", "v")]
    if kind.extra is not None:
        given.append(f"({kind.extra[1]}){cast if kind.extra[2] else ''}")
    return _TEXT.format(
        sizes=", ".join(map(str, sizes)),
        names=f", {kind.extra[0]}" if kind.extra is not None else "",
        body="\n        ".join(line for line in body.splitlines() if line),
        q=f"torch.randn((B, H, S, D), generator=rng(0)){chosen.q}",
        k=f"torch.randn((B, K, T, D), generator=rng(1)){chosen.k}",
        inputs=", ".join(given),
    )
