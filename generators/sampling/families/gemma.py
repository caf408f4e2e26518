"""Gemma: embeddings times the root of their size, (1 + weight) in RMSNorm, norms of q and k, scores under a soft cap."""

import math

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.attention_features import Extras
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads
from generators.sampling.layers import (
    bounded,
    draw_groups,
    gated,
    linear,
    project,
    rms_norm,
    rotary_angles,
    rotate,
    stream,
)
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """A decoder layer: Gemma 2 has the soft cap, Gemma 3 the norms of q and k, both norms behind each part."""
    head_dim = bounded(b, even=True)
    query, key, group = draw_groups(b, c)
    x = stream(b, c, query * head_dim)
    if c.chance(0.6):
        root = math.sqrt(b.size(query * head_dim))
        given = [b.op("scalar", to="root", value=root, dtype=b.dtype)] if c.chance(0.5) else []
        x = b.op("mul", x, *given, to="x", other=None if given else root)
    cos, sin = rotary_angles(b, c, Size.of("S"), Size.of("E"))
    normed = rms_norm(b, c, x, around_one=True)
    found = [
        project(b, c, normed, name, n, head_dim, bias=False) for name, n in zip("qkv", (query, key, key), strict=True)
    ]
    third = c.chance(0.4)
    turned = []
    for head in found[:2]:
        value = rms_norm(b, c, head.value, around_one=True) if third else head.value
        value = rotate(b, value, cos, sin)
        turned.append(Head(value, value, "bhsd"))
    extras = Extras(softcap=not third, causal=c.pick((None, "top_left")))
    attended = attend(b, c, Heads(turned[0], turned[1], found[2], group), c.wildness / 5, extras)
    out = linear(b, c, merge_heads(b, c, attended.output), "o", query * head_dim, bias=False)
    if c.chance(0.8):
        return [out]
    x = b.op("add", x, rms_norm(b, c, out, around_one=True), to="x")
    return [b.op("add", x, gated(b, c, rms_norm(b, c, x, around_one=True), "gelu"), to="x") if c.chance(0.4) else x]


FAMILY = Family(
    weight=1.0,
    habits={"scale.place": "scores", "scale.divide": "mul", "softmax.upcast": "argument", "softmax.back": "to"},
    write=write,
)
