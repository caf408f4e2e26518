"""Cross-attention of diffusion models and Perceivers: queries of one stream, keys and values of another, of another width."""

from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Heads, draw_values
from generators.sampling.layers import bounded, layer_norm, linear, project
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """S queries, from a stream or learned and expanded over the batch, over T places of `context`."""
    length = b.dims["T"]
    head_dim, heads = bounded(b), Size.of("H")
    b.dims |= {"T": length, "C": c.pick((1, 3, 8, 32))}
    embed = heads * head_dim
    if c.chance(0.3):
        learned = b.input("latents", (1, "S", embed), parameter=True)
        x = b.op("expand", learned, to="x", sizes=shape_of("B", -1, -1))
    else:
        x = b.input("x", ("B", "S", embed), draw_values(c))
    context = b.input("context", ("B", "T", "C"), draw_values(c))
    normed = layer_norm(b, c, x) if c.chance(0.5) else x
    q, k, v = (
        project(b, c, normed if name == "q" else context, name, heads, head_dim, bias=c.chance(0.2)) for name in "qkv"
    )
    attended = attend(b, c, Heads(q, k, v, Size.of(1)), c.wildness / 5)
    out = linear(b, c, merge_heads(b, c, attended.output), "out", embed, bias=True)
    return [b.op("add", out, x, to="x") if c.chance(0.6) else out]


FAMILY = Family(weight=2.5, habits={"scale.place": "scores", "scale.divide": "mul", "mask.kind": "none"}, write=write)
