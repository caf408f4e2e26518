"""Falcon: one key head for all queries, rotary positions, attention and feed-forward side by side."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, permuted
from generators.sampling.layers import bounded, feed_forward, layer_norm, linear, rotary_angles, rotate, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """A layer: q, k and v packed as [B, S, H + 2, D], the last two of them the keys and values."""
    head_dim, heads = bounded(b, even=True), Size.of("H")
    embed, length = heads * head_dim, Size.of("S")
    x = stream(b, c, embed)
    normed = layer_norm(b, c, x)
    packed = linear(b, c, normed, "qkv", (heads + 2) * head_dim, bias=False)
    packed = b.op("view", packed, sizes=(Size.of("B"), length, heads + 2, head_dim))
    ends = (Size.of(0), heads, heads + 1, heads + 2)
    parts = [b.op("narrow", packed, to=name, dim=2, start=ends[i], stop=ends[i + 1]) for i, name in enumerate("qkv")]
    cos, sin = rotary_angles(b, c, length, Size.of("E"))
    found = []
    for name, part in zip("qkv", parts, strict=True):
        value = permuted(b, c, part, "bshd", "bhsd", name)
        value = value if name == "v" else rotate(b, value, cos, sin)
        found.append(Head(value, value, "bhsd"))
    attended = attend(b, c, Heads(found[0], found[1], found[2], heads), c.wildness / 5)
    out = linear(b, c, merge_heads(b, c, attended.output), "dense", embed, bias=False)
    if c.chance(0.6):
        return [out]
    return [b.op("add", b.op("add", out, feed_forward(b, c, normed, bias=False)), x, to="x")]


FAMILY = Family(
    weight=1.0,
    habits={
        "scale.place": "scores",
        "scale.divide": "div",
        "mask.kind": "add",
        "mask.shape": "ones",
        "softmax.back": "to",
    },
    write=write,
)
