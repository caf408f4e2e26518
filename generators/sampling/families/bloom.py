"""BLOOM: ALiBi as the bias of baddbmm, q, k and v packed within each head, softmax in float32 and back."""

import math

from generators.program.case import Contract
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.layers import bounded, linear, stream
from generators.sampling.masks import apply_mask
from generators.sampling.merge_heads import merge_heads
from generators.sampling.position_masks import NO_PATTERN
from generators.sampling.softmax import spell_softmax


def write(b: Builder, c: Choices) -> list[str]:
    """The attention of a layer: heads folded into the batch, k already transposed by its permutation."""
    head_dim = bounded(b)
    batch, heads, length = Size.of("B"), Size.of("H"), Size.of("S")
    x = stream(b, c, heads * head_dim)
    packed = linear(b, c, x, "qkv", heads * head_dim * 3, bias=c.chance(0.7))
    packed = b.op("view", packed, sizes=(batch, length, heads, Size.of(3), head_dim))
    q, k, v = (
        b.op("permute", b.op("select", packed, to=name, dim=3, index=i), to=name, dims=(0, 2, 1, 3))
        for i, name in enumerate("qkv")
    )
    folded = [b.op("reshape", value, to="flat", sizes=(batch * heads, length, head_dim)) for value in (q, k, v)]
    steps = b.op("arange", to="steps", start=1, stop=heads + 1, dtype="float32")
    slopes = b.op(
        "view",
        b.op("exp", b.op("mul", steps, other=-8 * math.log(2) / max(1, b.size(heads))), to="slopes"),
        sizes=(Size.of(1), heads, Size.of(1), Size.of(1)),
    )
    alibi = b.op("mul", slopes, b.op("arange", to="places", stop=length, dtype="float32"), to="alibi")
    alibi = b.op("expand", b.op("cast", alibi, dtype=b.dtype), sizes=(batch, heads, Size.of(1), length))
    bias = b.op("reshape", alibi, to="bias", sizes=(batch * heads, Size.of(1), length))
    scale = 1 / math.sqrt(max(1, b.size(head_dim)))
    kt = b.op("transpose", folded[1], to="kt", dim0=1, dim1=2)
    scores = b.op("baddbmm", bias, folded[0], kt, to="scores", beta=c.pick((1, 1.0)), alpha=scale)
    scores = b.op("view", scores, sizes=(batch, heads, length, length))
    masked = apply_mask(b, c, scores, NO_PATTERN)
    probs = spell_softmax(b, c, masked.scores, v)
    weights = b.op("view", probs.value, to="weights", sizes=(batch * heads, length, length))
    out = b.op("view", b.op("bmm", weights, folded[2], to="out"), sizes=(batch, heads, length, head_dim))
    if probs.contractual and masked.contractual and masked.bias is None and masked.fill == -math.inf:
        b.contracts.append(
            Contract(
                q,
                k,
                v,
                out,
                scale=scale,
                bias=alibi,
                mask=masked.mask,
                mask_means=masked.means,
                causal=masked.pattern.causal,
            )
        )
    return [linear(b, c, merge_heads(b, c, out), "dense", heads * head_dim, bias=True)] if c.chance(0.6) else [out]


FAMILY = Family(
    weight=2.0,
    habits={"mask.kind": "fill", "mask.fill": float("-inf"), "softmax.upcast": "argument", "softmax.back": "to"},
    write=write,
)
