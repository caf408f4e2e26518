"""ALBERT and BERT in layers: two or three of them, with the same weights in all or each with its own."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families import bert
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, permuted, split_heads
from generators.sampling.layers import apply_linear, bounded, layer_norm, stream, weight_of
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """Post-norm layers without feed-forwards."""
    head_dim, heads = bounded(b), Size.of("H")
    embed = heads * head_dim
    x, shared = stream(b, c, embed), c.chance(0.6)
    weights: dict[str, str] = {}
    for _ in range(c.weighted({2: 4.0, 3: 1.0})):
        if not weights or not shared:
            weights = {name: weight_of(b, c, name, embed, embed) for name in "qkvo"}
        found = []
        for name in "qkv":
            split = split_heads(b, c, apply_linear(b, c, x, name, weights[name]), heads, head_dim)
            found.append(Head(permuted(b, c, split, "bshd", "bhsd", name), split, "bshd"))
        attended = attend(b, c, Heads(found[0], found[1], found[2], Size.of(1)), c.wildness / 5)
        out = apply_linear(b, c, merge_heads(b, c, attended.output), "o", weights["o"])
        x = layer_norm(b, c, b.op("add", x, out, to="x")) if c.chance(0.7) else b.op("add", x, out, to="x")
    return [x]


FAMILY = Family(weight=1.2, habits=bert.FAMILY.habits, write=write)
