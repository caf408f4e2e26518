"""Qwen 3: q and k normed head by head before rotary positions, grouped queries."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families import llama
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, permuted, split_heads
from generators.sampling.layers import bounded, draw_groups, layer_norm, linear, rms_norm, rotary_angles, rotate, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """The attention of a layer; the norms are RMSNorm, or LayerNorm as in vision models."""
    head_dim = bounded(b, even=True)
    query, key, group = draw_groups(b, c)
    x = stream(b, c, query * head_dim)
    cos, sin = rotary_angles(b, c, Size.of("S"), Size.of("E"))
    norm = rms_norm if c.chance(0.75) else layer_norm
    found = []
    for name, count in zip("qkv", (query, key, key), strict=True):
        split = split_heads(b, c, linear(b, c, x, name, count * head_dim, bias=False), count, head_dim)
        normed = split if name == "v" else norm(b, c, split)
        value = permuted(b, c, normed, "bshd", "bhsd", name)
        value = value if name == "v" else rotate(b, value, cos, sin)
        found.append(Head(value, value, "bhsd"))
    attended = attend(b, c, Heads(found[0], found[1], found[2], group), c.wildness / 5)
    return [linear(b, c, merge_heads(b, c, attended.output), "o", query * head_dim, bias=False)]


FAMILY = Family(weight=0.8, habits=llama.HABITS, write=write)
