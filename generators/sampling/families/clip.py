"""CLIP: q scaled, heads folded into the batch for bmm, and a causal mask of -inf made by triu."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Heads
from generators.sampling.layers import bounded, layer_norm, linear, project, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """A layer of the text tower, or of the vision tower, which has no mask."""
    head_dim, heads = bounded(b), Size.of("H")
    x = stream(b, c, heads * head_dim)
    normed = layer_norm(b, c, x)
    q, k, v = (project(b, c, normed, name, heads, head_dim, bias=True) for name in "qkv")
    c.habits = {**c.habits, "mask.kind": "none" if c.chance(0.3) else "add"}
    attended = attend(b, c, Heads(q, k, v, Size.of(1)), c.wildness / 5)
    x = b.op("add", x, linear(b, c, merge_heads(b, c, attended.output), "out", heads * head_dim, bias=True), to="x")
    if c.chance(0.6):
        return [x]
    # QuickGELU.
    wide = linear(b, c, layer_norm(b, c, x), "fc", heads * head_dim * 2, bias=True)
    wide = b.op("mul", wide, b.op("sigmoid", b.op("mul", wide, other=1.702), to="gate"))
    return [b.op("add", x, linear(b, c, wide, "proj", heads * head_dim, bias=True), to="x")]


FAMILY = Family(
    weight=2.0,
    habits={
        "scale.place": "q",
        "scale.divide": "mul",
        "scores.product": "flat",
        "scores.fold": "before",
        "scores.again": "flat",
        "mask.from": "made",
        "mask.triangle": "triu",
        "softmax.upcast": "none",
    },
    write=write,
)
