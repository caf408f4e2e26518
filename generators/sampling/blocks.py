"""Whole modules around attention: embedding, positions, norms, projections, residuals, feed-forward."""

from dataclasses import dataclass, replace

from generators.program.sizes import Size
from generators.sampling import layers
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_values, flat_head, merge_heads, split_packed
from generators.sampling.steps import AttentionFeatures, insert_noop


@dataclass(frozen=True, slots=True)
class _Style:
    """Decisions that hold throughout a module."""

    embed: Size
    head_dim: Size
    norm: layers.Norm = layers.layer_norm
    residual: str = "none"
    projection: str = "separate"
    groups: tuple[Size, ...] = ()
    """As `draw_groups` gives them."""
    angles: tuple[str, ...] = ()
    """Of rotary positions."""
    context: str = ""
    """The source of keys and values, if not the layer's input."""
    bias: bool = True


def block_module(b: Builder, c: Choices, features: AttentionFeatures) -> list[str]:
    """Write a module of one or two layers around attention. Returns the names of its results."""
    length, is_rotary = b.dims["T"], c.choose("positions", {"none": 9.0, "rotary": 1.0}) == "rotary"
    head_dim = layers.limit_dims(b, even=is_rotary)
    projection = c.choose("projection", {"separate": 6.0, "packed": 3.0, "grouped": 2.0, "one_head": 1.5, "context": 1})
    style = _Style(
        embed=Size.of("H") * head_dim,
        head_dim=head_dim,
        norm=layers.NORMS[c.choose("norm", {"layer": 5.0, "rms": 4.0, "none": 4.0, "running": 0.2})],
        residual=c.choose("residual", {"none": 5.0, "pre": 5.0, "post": 2.0, "parallel": 2.0}),
        projection=projection,
        groups=layers.draw_groups(b, c, c.pick(("group", "one"))) if projection == "grouped" else (),
        angles=layers.rotary_angles(b, c, Size.of("S"), Size.of("E")) if is_rotary else (),
        bias=c.chance(0.5),
    )
    if projection == "context":
        b.dims["T"] = length
        style = replace(style, context=b.input("memory", ("B", "T", style.embed), draw_values(c)), angles=())
    x = layers.draw_stream(b, c, style.embed)
    for _ in range(c.choose("layers", {1: 9.0, 2: 1.0})):
        before = style.norm(b, c, x) if style.residual != "post" else x
        attention = attend(b, c, _project(b, c, style, before), features)
        merged = insert_noop(b, c, merge_heads(b, c, attention.output))
        out = layers.linear(b, c, merged, "o", style.embed, bias=style.bias)
        x = _around(b, c, style, x, before, out)
    return [x, *(c.subset(attention.intermediates, 0.5) if c.chance(0.1) else [])]


def _project(b: Builder, c: Choices, style: _Style, x: str) -> Heads:
    heads = Size.of("H")
    if style.projection == "one_head":
        single = c.chance(0.6)
        flat = {name: layers.linear(b, c, x, name, style.embed, bias=style.bias) for name in "qkv"}
        return Heads(*(flat_head(b, c, value, "bsd", name, single=single) for name, value in flat.items()))
    if style.projection == "packed":
        packed = layers.linear(b, c, x, "qkv", style.embed * 3, bias=style.bias)
        found = split_packed(b, c, packed, heads, style.head_dim)
    else:
        query, key, group = style.groups or (heads, heads, Size.of(1))
        context = style.context or x
        streams = (("q", x, query), ("k", context, key), ("v", context, key))
        projected = (layers.project(b, c, *stream, style.head_dim, bias=style.bias) for stream in streams)
        found = Heads(*projected, group=group)
    if not style.angles:
        return found
    q, k = (Head.of(layers.rotate(b, head.value, style.angles)) for head in (found.q, found.k))
    return replace(found, q=q, k=k)


def _around(b: Builder, c: Choices, style: _Style, x: str, before: str, attention: str) -> str:
    """The residual around the attention and the feed-forward, in the style's arrangement."""
    feeds = c.chance(0.5)

    def feed(value: str) -> str:
        act = c.draw({"gelu": 4.0, "relu": 3.0, "silu": 4.0})
        gated = act == "silu" and c.chance(0.5)
        return layers.feed_forward(b, c, value, act, bias=style.bias, times=c.pick((1, 2, 4)), gated=gated)

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
