"""ViT: patches of an image as tokens, a class token before them, one layer for q, k and v, no mask."""

from generators.program.case import Values
from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values, split_packed
from generators.sampling.layers import bounded, feed_forward, layer_norm, linear
from generators.sampling.merge_heads import merge_heads

_PATCHES = Size.parse("Y*X")


def write(b: Builder, c: Choices) -> list[str]:
    """One pre-norm layer, with what comes before it: [B, C, Y * P, X * P] cut into patches, and positions added."""
    head_dim = bounded(b)
    embed = Size.of("H") * head_dim
    b.dims |= {"Y": c.pick((1, 2, 3, 4)), "X": c.pick((1, 2, 3, 4)), "P": c.pick((1, 2, 4)), "C": c.pick((1, 3))}
    if c.chance(0.5):
        image = b.input(
            "image", ("B", "C", "Y*P", "X*P"), draw_values(c), layout=c.pick(("contiguous", "channels_last"))
        )
        cut = b.op("reshape", image, to="patches", sizes=shape_of("B", "C", "Y", "P", "X", "P"))
        cut = b.op("permute", cut, dims=(0, 2, 4, 3, 5, 1) if c.chance(0.5) else (0, 2, 4, 1, 3, 5))
        x = b.op("reshape", cut, to="x", sizes=shape_of("B", _PATCHES, "P*P*C"))
        x = linear(b, c, x, "embed", embed, bias=True)
    else:
        # As a convolution leaves it: features before places.
        features = b.input(
            "features", ("B", embed, "Y", "X"), draw_values(c), layout=c.pick(("contiguous", "channels_last"))
        )
        x = b.op("transpose", b.op("flatten", features, to="x", start=2), dim0=1, dim1=2)
    token = b.input("cls", (1, 1, embed), parameter=True)
    x = b.op("cat", b.op("expand", token, sizes=shape_of("B", -1, -1)), x, to="x", dim=1)
    x = b.op("add", x, b.input("places", (1, _PATCHES + 1, embed), Values(scale=0.5), parameter=True), to="x")
    qkv = linear(b, c, layer_norm(b, c, x), "qkv", embed * 3, bias=c.chance(0.8))
    attended = attend(b, c, split_packed(b, c, qkv, Size.of("H"), head_dim), c.wildness / 5)
    x = b.op("add", x, linear(b, c, merge_heads(b, c, attended.output), "proj", embed, bias=True), to="x")
    if c.chance(0.3):
        x = b.op("add", x, feed_forward(b, c, layer_norm(b, c, x)), to="x")
    return [b.op("select", x, to="head", dim=1, index=0)] if c.chance(0.3) else [x]


FAMILY = Family(
    weight=4.0,
    habits={"scale.place": "scores", "scale.divide": "mul", "mask.kind": "none", "softmax.upcast": "none"},
    write=write,
)
