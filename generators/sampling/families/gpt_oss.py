"""gpt-oss: a sink a head beside the scores, grouped queries, rotary positions, every second layer with a window."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.attention_features import Extras
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads
from generators.sampling.layers import bounded, draw_groups, linear, project, rms_norm, rotary_angles, rotate, stream
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """The attention of a layer, all projections with biases."""
    head_dim = bounded(b, even=True)
    query, key, group = draw_groups(b, c)
    x = rms_norm(b, c, stream(b, c, query * head_dim))
    cos, sin = rotary_angles(b, c, Size.of("S"), Size.of("E"))
    found = [project(b, c, x, name, n, head_dim, bias=True) for name, n in zip("qkv", (query, key, key), strict=True)]
    q, k = (Head(rotated, rotated, "bhsd") for rotated in (rotate(b, head.value, cos, sin) for head in found[:2]))
    extras = Extras(sinks=True, causal="top_left", window=c.chance(0.5))
    attended = attend(b, c, Heads(q, k, found[2], group), c.wildness / 5, extras)
    return [linear(b, c, merge_heads(b, c, attended.output), "o", query * head_dim, bias=True)]


FAMILY = Family(weight=0.6, habits={"scale.place": "scores", "scale.divide": "mul", "softmax.back": "to"}, write=write)
