"""Whisper: q and k both scaled by the fourth root of the head size, softmax in float32, self- and cross-attention."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Heads
from generators.sampling.layers import bounded, layer_norm, linear, project, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """An attention of the decoder over its own tokens, or over the T frames of the encoder; k has no bias."""
    crossed, length = c.chance(0.5), b.dims["T"]
    head_dim, heads = bounded(b), Size.of("H")
    x = stream(b, c, heads * head_dim)
    normed = layer_norm(b, c, x)
    source = normed
    if crossed:
        b.dims["T"] = length
        source = b.input("frames", ("B", "T", heads * head_dim))
    q, k, v = (
        project(b, c, normed if name == "q" else source, name, heads, head_dim, bias=name != "k") for name in "qkv"
    )
    c.habits = {**c.habits, "mask.kind": "none" if crossed else "add"}
    attended = attend(b, c, Heads(q, k, v, Size.of(1)), c.wildness / 5)
    out = linear(b, c, merge_heads(b, c, attended.output), "out", heads * head_dim, bias=True)
    return [b.op("add", x, out, to="x"), *c.subset(attended.extras, 0.1)]


FAMILY = Family(
    weight=2.0,
    habits={
        "scale.place": "both",
        "scores.transpose": "permute",
        "mask.from": "made",
        "mask.triangle": "triu",
        "softmax.upcast": "float",
        "softmax.back": "to",
    },
    write=write,
)
