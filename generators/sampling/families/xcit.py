"""XCiT: attention between channels instead of places, of normalised q and k, with a temperature a head."""

from generators.program.case import Values
from generators.program.sizes import Size, shape_of
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values, split_packed
from generators.sampling.softmax import spell_softmax


def write(b: Builder, c: Choices) -> list[str]:
    """Scores [B, H, D, D] of q and k with the places last."""
    heads = split_packed(b, c, b.input("qkv", ("B", "S", "3*H*D"), draw_values(c)), Size.of("H"), Size.of("D"))
    q, k, v = (
        b.op("transpose", head.value, to=name) for name, head in zip("qkv", (heads.q, heads.k, heads.v), strict=True)
    )
    q, k = b.op("normalize", q), b.op("normalize", k)
    scores = b.op("matmul", q, b.op("transpose", k, to="kt"), to="scores")
    shape = c.pick((shape_of("H", 1, 1), shape_of(1, 1, 1)))
    scores = b.op("mul", scores, b.input("temperature", shape, Values("uniform", scale=4.0), parameter=True))
    out = b.op("matmul", spell_softmax(b, c, scores, v).value, v, to="out")
    return [b.op("permute", out, dims=(0, 3, 1, 2))] if c.chance(0.5) else [out]


FAMILY = Family(weight=1.5, write=write)
