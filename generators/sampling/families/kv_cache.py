"""Decoding with a cache: past keys and values joined with those of the few new tokens, which are returned for later."""

from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.attention_features import Extras
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import Head, Heads, draw_values
from generators.sampling.layers import bounded, draw_groups, project, rotary_angles, rotate
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """One step: S new tokens, mostly one, after T old ones; a cache of a fixed size is cut to what is filled."""
    past = b.dims["T"]
    head_dim, heads, length = bounded(b, even=True), Size.of("H"), Size.of("S")
    b.dims |= {"T": past, "S": 1 if c.chance(0.7) else b.dims["S"]}
    key, group = heads, Size.of(1)
    if c.chance(0.4):
        heads, key, group = draw_groups(b, c)
    x = b.input("x", ("B", "S", heads * head_dim), draw_values(c))
    found = [
        project(b, c, x, name, n, head_dim, bias=c.chance(0.3))
        for name, n in zip("qkv", (heads, key, key), strict=True)
    ]
    q, k, v = (head.value for head in found)
    if c.chance(0.5):
        cos, sin = rotary_angles(b, c, length, Size.of("E"), start=Size.of("T"))
        q, k = rotate(b, q, cos, sin), rotate(b, k, cos, sin)
    joined = []
    longer = c.chance(0.3)
    for name, new in (("k", k), ("v", v)):
        old = b.input(f"past_{name}", ("B", key, "T+7" if longer else "T", head_dim))
        old = b.op("narrow", old, dim=2, stop="T") if longer else old
        joined.append(b.op("cat", old, new, to="keys" if name == "k" else "values", dim=c.pick((2, -2))))
    now = Heads(Head(q, q, "bhsd"), Head(joined[0], joined[0], "bhsd"), Head(joined[1], joined[1], "bhsd"), group)
    # One new token sees all; more see each other from the last key on.
    extras = Extras(causal=None if b.dims["S"] == 1 else "bottom_right")
    attended = attend(b, c, now, c.wildness / 5, extras)
    return [merge_heads(b, c, attended.output), *(joined if c.chance(0.7) else [])]


FAMILY = Family(weight=3.0, habits={"scale.place": "scores", "mask.kind": "none", "softmax.back": "to"}, write=write)
