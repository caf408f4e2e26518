"""Visformer: q, k and v packed with their places last, as a convolution leaves them, and scores multiplied by the scale."""

from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, draw_values, head_inputs
from generators.sampling.layers import bounded


def write(b: Builder, c: Choices) -> list[str]:
    """The attention alone, over [B, 3 * H * D, S], or over three tensors."""
    if c.chance(0.4):
        return [attend(b, c, head_inputs(b, c), c.wildness / 5).output]
    bounded(b)
    packed = b.op("view", b.input("qkv", ("B", "3*H*D", "S"), draw_values(c)), sizes=shape_of("B", 3, "H", "D", "S"))
    packed = b.op("permute", packed, dims=(1, 0, 2, 4, 3))
    parts = (b.op(c.pick(("select", "unbind")), packed, to=name, dim=0, index=i) for i, name in enumerate("qkv"))
    q, k, v = (Head(part, part, "bhsd") for part in parts)
    out = attend(b, c, Heads(q, k, v, Size.of(1)), c.wildness / 5).output
    return [
        b.op("reshape", b.op("transpose", out, to="out"), sizes=shape_of("B", "H*D", "S")) if c.chance(0.5) else out
    ]


FAMILY = Family(
    weight=4.0,
    habits={
        "order": "bhds",
        "scale.place": "scores",
        "scale.divide": "mul",
        "mask.kind": "none",
        "softmax.upcast": "none",
    },
    write=write,
)
