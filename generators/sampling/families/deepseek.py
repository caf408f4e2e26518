"""DeepSeek's latent attention: keys joined from a part a head and a rotated part that all heads share, values narrower."""

from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, draw_values, permuted


def write(b: Builder, c: Choices) -> list[str]:
    """The attention over [B, length, H, dim], mostly by the fused call, which has no fused kernel for such sizes on CPU."""
    b.dims |= {"A": c.pick((1, 2, 4, 8)), "V": b.dims["D"] if c.chance(0.9) else b.dims["V"]}
    q = b.input("q", ("B", "S", "H", "D+A"), draw_values(c))
    plain = b.input("k", ("B", "T", "H", "D"), draw_values(c))
    shared = b.op("expand", b.input("k_rot", ("B", "T", 1, "A")), sizes=shape_of("B", "T", "H", "A"))
    k = b.op("cat", plain, shared, to="keys", dim=-1)
    v = b.input("v", ("B", "T", "H", "V"), draw_values(c))
    found = [Head(permuted(b, c, x, "bshd", "bhsd", name), x, "bshd") for name, x in (("q", q), ("k", k), ("v", v))]
    return [attend(b, c, Heads(found[0], found[1], found[2], Size.of(1)), c.wildness / 5).output]


FAMILY = Family(weight=2.5, habits={"fused": "sdpa", "sdpa.mask": "mask"}, write=write)
