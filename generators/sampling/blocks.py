"""Whole modules around attention: embedding, positions, norms, projections, residuals, feed-forward."""

from dataclasses import dataclass

from generators.program.sizes import Size
from generators.sampling.attention import AttentionValues, attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Heads, draw_values, flat_head, merge_heads, split_packed
from generators.sampling.layers import (
    Norm,
    draw_groups,
    draw_stream,
    feed_forward,
    layer_norm,
    limit_dims,
    linear,
    project,
    project_output,
    rms_norm,
)
from generators.sampling.steps import AttentionFeatures, insert_noop

_EMBED = Size.parse("H*D")


@dataclass(frozen=True, slots=True)
class _Style:
    """Decisions that hold throughout one module."""

    norm: Norm
    residual: str
    bias: bool


def block_module(b: Builder, c: Choices, features: AttentionFeatures) -> list[str]:
    """A module around one attention; returns what it returns."""
    limit_dims(b)
    style = _Style(
        norm=c.draw({layer_norm: 5.0, rms_norm: 4.0, _leave: 4.0}),
        residual=c.draw({"none": 5.0, "pre": 5.0, "post": 2.0, "parallel": 2.0}),
        bias=c.chance(0.5),
    )
    x = draw_stream(b, c, _EMBED, given=0.7)
    before = style.norm(b, c, x) if style.residual != "post" else x
    attention = attend(b, c, _project(b, c, style, before), features)
    merged = insert_noop(b, c, merge_heads(b, c, attention.output))
    x = _around(b, c, style, x, before, linear(b, c, merged, "o", _EMBED, bias=style.bias))
    return [x, *(c.subset(attention.intermediates, 0.5) if c.chance(0.1) else [])]


def attend_stream(
    b: Builder, c: Choices, x: str, head_dim: Size, *, biases: str = "", source: str = "", bias: str = ""
) -> tuple[str, AttentionValues]:
    """Attention of H heads of x, [B, S, width], to itself or to `source`: what is projected back, and what it gave.

    `biases` names those projections, of q, k, v and o, that have a bias; `bias` is added to the scores.
    """
    heads, streams = Size.of("H"), {"q": x, "k": source or x, "v": source or x}
    found = [project(b, c, value, name, heads, head_dim, bias=name in biases) for name, value in streams.items()]
    attention = attend(b, c, Heads(*found), bias=bias)
    return project_output(b, c, attention.output, "o", heads * head_dim, bias="o" in biases), attention


def _leave(_b: Builder, _c: Choices, x: str) -> str:
    return x


def _project(b: Builder, c: Choices, style: _Style, x: str) -> Heads:
    how = c.draw({"separate": 6.0, "packed": 3.0, "grouped": 2.0, "one_head": 1.5})
    heads, head_dim = Size.of("H"), Size.of("D")
    if how == "packed":
        return split_packed(b, c, linear(b, c, x, "qkv", _EMBED * 3, bias=style.bias), heads, head_dim)
    if how == "one_head":
        single = c.chance(0.6)
        flat = {name: linear(b, c, x, name, _EMBED, bias=style.bias) for name in "qkv"}
        return Heads(*(flat_head(b, c, value, "bsd", name, single=single) for name, value in flat.items()))
    query, key, group = heads, heads, Size.of(1)
    if how == "grouped":
        query, key, group = draw_groups(b, c, c.pick(("group", "one")))
    context = x
    if how == "separate" and c.chance(0.1):
        context = b.input("memory", ("B", "T", _EMBED), draw_values(c))
    streams = (("q", x, query), ("k", context, key), ("v", context, key))
    found = [project(b, c, source, name, count, head_dim, bias=style.bias) for name, source, count in streams]
    return Heads(*found, group=group)


def _around(b: Builder, c: Choices, style: _Style, x: str, before: str, attention: str) -> str:
    """The residual around the attention and the feed-forward, in the style's arrangement."""
    feeds = c.chance(0.5)

    def feed(value: str) -> str:
        act = c.draw({"gelu": 4.0, "relu": 3.0, "silu": 4.0})
        gated = act == "silu" and c.chance(0.5)
        return feed_forward(b, c, value, act, bias=style.bias, times=c.pick((1, 2, 4)), gated=gated)

    if style.residual == "none":
        return feed(attention) if feeds and c.chance(0.4) else attention
    # Conformers add half of it.
    total = b.op("add", x, attention, to="x", alpha=c.draw({1: 9.0, 0.5: 1.0}))
    if style.residual == "parallel":
        return b.op("add", total, feed(before), to="x") if feeds else total
    if style.residual == "post":
        total = style.norm(b, c, total)
    if not feeds:
        return total
    inner = style.norm(b, c, total) if style.residual == "pre" else total
    out = b.op("add", total, feed(inner), to="x")
    return style.norm(b, c, out) if style.residual == "post" else out
