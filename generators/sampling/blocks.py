"""Whole modules around attention: embedding, positions, norms, projections, residuals, feed-forward."""

from dataclasses import dataclass

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_values, merge_heads, split_packed
from generators.sampling.layers import draw_stream, limit_dims, linear, project
from generators.sampling.steps import AttentionFeatures, insert_noop

_EMBED = Size.parse("H*D")


@dataclass(frozen=True, slots=True)
class _Style:
    """Decisions that hold throughout one module."""

    norm: str
    residual: str
    bias: bool


def block_module(b: Builder, c: Choices, features: AttentionFeatures) -> list[str]:
    """A module around one attention; returns what it returns."""
    limit_dims(b)
    style = _Style(
        norm=c.weighted({"layer_norm": 5.0, "rms_norm": 3.0, "manual_rms": 1.0, "none": 4.0}),
        residual=c.weighted({"none": 5.0, "pre": 5.0, "post": 2.0, "parallel": 2.0}),
        bias=c.chance(0.5),
    )
    x = _stem(b, c)
    before = _norm(b, c, style, x) if style.residual != "post" else x
    attention = attend(b, c, _project(b, c, style, before), features)
    merged = insert_noop(b, c, merge_heads(b, c, attention.output))
    x = _around(b, c, style, x, before, linear(b, c, merged, "o", _EMBED, bias=style.bias))
    return [x, *(c.subset(attention.intermediates, 0.5) if c.chance(0.1) else [])]


def _stem(b: Builder, c: Choices) -> str:
    x = draw_stream(b, c, _EMBED, given=0.7)
    if b.ops and c.chance(0.6):
        b.dims["P"] = b.dims["S"]
        table = b.input("positions", ("P", _EMBED), Values(scale=0.5), parameter=True)
        if c.chance(0.5):
            place = b.op("embedding", b.op("arange", to="at", stop="S"), table, to="position")
        else:
            place = b.op("narrow", table, to="position", dim=0, stop="S")
        x = b.op("add", x, place)
    return x


def _norm(b: Builder, c: Choices, style: _Style, x: str) -> str:
    if style.norm == "none":
        return x
    weight = b.input("gain", (_EMBED,), Values("uniform", scale=2.0), parameter=True)
    eps = c.weighted({None: 3.0, 1e-5: 2.0, 1e-6: 1.0})
    if style.norm == "layer_norm":
        more = [b.input("shift", (_EMBED,), Values(scale=0.1), parameter=True)] if c.chance(0.7) else []
        return b.op("layer_norm", x, weight, *more, to="normed", eps=eps)
    if style.norm == "rms_norm":
        return b.op("rms_norm", x, weight, to="normed", eps=eps)
    wide = b.op("cast", x, to="wide", dtype="float32")
    square = b.op("mean", b.op("square", wide, to="square"), to="variance", dim=-1, keepdim=True)
    inverse = b.op("rsqrt", b.op("add", square, other=1e-6), to="inverse")
    scaled = b.op("mul", wide, inverse, to="normed")
    return b.op("mul", b.op("cast", scaled, dtype=b.dtype), weight, to="normed")


def _project(b: Builder, c: Choices, style: _Style, x: str) -> Heads:
    how = c.weighted({"separate": 6.0, "packed": 3.0, "grouped": 2.0, "one_head": 1.5})
    heads, head_dim = Size.of("H"), Size.of("D")
    if how == "packed":
        return split_packed(b, c, linear(b, c, x, "qkv", _EMBED * 3, bias=style.bias), heads, head_dim)
    if how == "one_head":
        return _one_head(b, c, style, x)
    query, key, group = heads, heads, Size.of(1)
    if how == "grouped":
        if b.dims["H"] % 2 == 0:
            b.dims["R"] = 2
            b.dims["G"] = b.dims["H"] // 2
            key, group = Size.of("G"), Size.of("R")
        else:
            key, group = Size.of(1), heads
    context = x
    if how == "separate" and c.chance(0.1):
        context = b.input("memory", ("B", "T", _EMBED), draw_values(c))
    streams = (("q", x, query), ("k", context, key), ("v", context, key))
    found = [project(b, c, source, name, count, head_dim, bias=style.bias) for name, source, count in streams]
    return Heads(*found, group=group)


def _one_head(b: Builder, c: Choices, style: _Style, x: str) -> Heads:
    unsqueezed = c.chance(0.6)
    found = []
    for name in "qkv":
        value = linear(b, c, x, name, _EMBED, bias=style.bias)
        if unsqueezed:
            value = b.op("unsqueeze", value, dim=1)
            if c.chance(0.3):
                value = b.op("permute", value, dims=(0, 1, 2, 3))
        found.append(Head(value, value, "bhsd" if unsqueezed else "bsd"))
    return Heads(*found)


def _around(b: Builder, c: Choices, style: _Style, x: str, before: str, attention: str) -> str:
    """The residual around the attention and the feed-forward, in the style's arrangement."""
    feeds = c.chance(0.5)
    if style.residual == "none":
        return _feed_forward(b, c, style, attention) if feeds and c.chance(0.4) else attention
    if style.residual == "parallel":
        total = b.op("add", x, attention, to="x")
        return b.op("add", total, _feed_forward(b, c, style, before), to="x") if feeds else total
    total = b.op("add", x, attention, to="x")
    if style.residual == "post":
        total = _norm(b, c, style, total)
    if not feeds:
        return total
    inner = _norm(b, c, style, total) if style.residual == "pre" else total
    out = b.op("add", total, _feed_forward(b, c, style, inner), to="x")
    return _norm(b, c, style, out) if style.residual == "post" else out


def _feed_forward(b: Builder, c: Choices, style: _Style, x: str) -> str:
    wide = _EMBED * c.pick((1, 2, 4))
    act = c.weighted({"gelu": 4.0, "relu": 3.0, "silu": 2.0, "gated": 2.0})
    hidden = linear(b, c, x, "up", wide, bias=style.bias)
    if act == "gated":
        gate = b.op("silu", linear(b, c, x, "gate", wide, bias=style.bias))
        hidden = b.op("mul", gate, hidden, to="hidden")
    elif act == "gelu":
        hidden = b.op("gelu", hidden, to="hidden", approximate=c.pick(("none", "tanh")))
    else:
        hidden = b.op(act, hidden, to="hidden")
    if c.chance(0.1):
        hidden = b.op("dropout", hidden, p=0.1, form=c.pick(("module", "functional")))
    return linear(b, c, hidden, "down", _EMBED, bias=style.bias)
