"""Llama: RMSNorm, rotary positions, grouped queries, a mask added, softmax in float32 and back, SwiGLU."""

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

HABITS = {
    "scale.place": "scores",
    "mask.kind": "add",
    "mask.shape": "ones",
    "softmax.upcast": "argument",
    "softmax.back": "to",
}


def layer(b: Builder, c: Choices, extras: Extras) -> list[str]:
    """A decoder layer, all of it or its attention alone."""
    head_dim = bounded(b, even=True)
    query, key, group = draw_groups(b, c)
    x = stream(b, c, query * head_dim)
    cos, sin = rotary_angles(b, c, Size.of("S"), Size.of("E"))
    normed = rms_norm(b, c, x)
    found = [
        project(b, c, normed, name, n, head_dim, bias=False) for name, n in zip("qkv", (query, key, key), strict=True)
    ]
    q, k = (Head(rotated, rotated, "bhsd") for rotated in (rotate(b, head.value, cos, sin) for head in found[:2]))
    attended = attend(b, c, Heads(q, k, found[2], group), c.wildness / 5, extras)
    out = linear(b, c, merge_heads(b, c, attended.output), "o", query * head_dim, bias=False)
    if c.chance(0.7):
        return [out, *c.subset([attended.keys, attended.values], 0.2)]
    x = b.op("add", x, out, to="x")
    return [b.op("add", x, gated(b, c, rms_norm(b, c, x)), to="x") if c.chance(0.6) else x]


def write(b: Builder, c: Choices) -> list[str]:
    """A layer without windows."""
    return layer(b, c, Extras())


FAMILY = Family(weight=1.5, habits=HABITS, write=write)
