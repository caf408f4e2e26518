"""Longformer-like local attention: blocks of queries, each over its own and the neighbouring keys, by overlapping windows."""

from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, draw_values


def write(b: Builder, c: Choices) -> list[str]:
    """Y blocks of W queries over windows of three blocks of keys, which are two blocks longer; blocks go with the batch."""
    b.dims |= {"W": c.pick((1, 2, 4, 8)), "Y": c.pick((1, 2, 3, 5)), "B": min(b.dims["B"], 4)}
    batch, heads, block, count = (Size.of(name) for name in "BHWY")
    wide = b.dims["W"]
    found = []
    for name, dim in (("q", Size.of("D")), ("k", Size.of("D")), ("v", Size.of("V"))):
        if name == "q":
            value = b.input("q", (batch, heads, count * block, dim), draw_values(c))
            value = b.op("view", value, sizes=(batch, heads, count, block, dim))
            value = b.op("permute", value, dims=(0, 2, 1, 3, 4))
            length = block
        else:
            value = b.input(name, (batch, heads, (count + 2) * block, dim), draw_values(c))
            value = b.op("unfold", value, dim=2, size=block * 3, step=wide)
            value = b.op("permute", value, dims=(0, 2, 1, 4, 3))
            length = block * 3
        value = b.op("reshape", value, sizes=(batch * count, heads, length, dim))
        found.append(Head(value, value, "bhsd"))
    out = attend(b, c, Heads(found[0], found[1], found[2], Size.of(1)), c.wildness / 5).output
    if c.chance(0.5):
        return [out]
    apart = b.op("reshape", out, to="apart", sizes=shape_of(batch, count, heads, block, "V"))
    apart = b.op("permute", apart, dims=(0, 2, 1, 3, 4))
    return [b.op("reshape", apart, to="out", sizes=shape_of(batch, heads, count * block, "V"))]


FAMILY = Family(weight=2.0, habits={"scale.place": "scores"}, write=write)
