"""GPT-J and GPT-NeoX: rotary positions on neighbours or on a part of the head, `where` under a causal buffer, in float32."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads
from generators.sampling.layers import bounded, feed_forward, layer_norm, linear, project, rotary_angles, rotate, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """A layer with attention and feed-forward side by side."""
    bounded(b)
    b.dims["E"] = max(1, b.dims["D"] // 4)
    b.dims["A"] = c.pick((0, 2, 4))
    turned, head_dim, heads = Size.parse("2*E"), Size.parse("2*E+A"), Size.of("H")
    x = stream(b, c, heads * head_dim)
    normed = layer_norm(b, c, x)
    pairs = c.chance(0.6)
    cos, sin = rotary_angles(b, c, Size.of("S"), Size.of("E"), pairs=pairs)
    found = []
    for name in "qkv":
        head = project(b, c, normed, name, heads, head_dim, bias=False)
        if name != "v":
            front = b.op("narrow", head.value, to="front", stop=turned)
            rest = b.op("narrow", head.value, to="rest", start=turned, stop=head_dim)
            value = b.op("cat", rotate(b, front, cos, sin, pairs=pairs), rest, to=name, dim=-1)
            value = b.op("cast", value, dtype="float32") if pairs else value
            head = Head(value, value, "bhsd")
        found.append(head)
    attended = attend(b, c, Heads(found[0], found[1], found[2], Size.of(1)), c.wildness / 5)
    out = linear(b, c, merge_heads(b, c, attended.output), "out", heads * head_dim, bias=False)
    if c.chance(0.6):
        return [out]
    return [b.op("add", b.op("add", out, feed_forward(b, c, normed)), x, to="x")]


FAMILY = Family(
    weight=0.8,
    habits={
        "scale.place": "scores",
        "scale.divide": "div",
        "mask.kind": "where",
        "mask.keep": "causal",
        "mask.fill": "min",
        "mask.low": "full",
        "softmax.upcast": "none",
        "softmax.back": "to",
        "dropout": "dropout",
    },
    write=write,
)
