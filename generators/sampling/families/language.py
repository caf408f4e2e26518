"""Writers of language models: layers of encoders and decoders, and decoding with a cache."""

import math
from collections.abc import Sequence

from generators.program.case import Values
from generators.program.sizes import Size, shape_of
from generators.sampling import layers
from generators.sampling.attention import attend
from generators.sampling.blocks import attend_stream
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_values, make_head, merge_heads, split_heads
from generators.sampling.masks import NO_PATTERN, apply_mask, position_indices
from generators.sampling.steps import AttentionFeatures, spell_softmax


def write_albert(b: Builder, c: Choices) -> list[str]:
    """ALBERT and BERT: two or three post-norm layers without feed-forward, sharing their weights or not."""
    head_dim, heads = layers.limit_dims(b), Size.of("H")
    embed = heads * head_dim
    x, shared = layers.draw_stream(b, c, embed), c.chance(0.6)
    weights: dict[str, str] = {}
    for _ in range(c.draw({2: 4.0, 3: 1.0})):
        if not weights or not shared:
            weights = {name: layers.weight_of(b, c, name, embed, embed) for name in "qkvo"}
        found = []
        for name in "qkv":
            split = split_heads(b, c, layers.apply_linear(b, c, x, name, weights[name]), heads, head_dim)
            found.append(make_head(b, c, split, "bshd", name))
        attention = attend(b, c, Heads(*found))
        out = layers.apply_linear(b, c, merge_heads(b, c, attention.output), "o", weights["o"])
        x = layers.layer_norm(b, c, b.op("add", x, out, to="x")) if c.chance(0.7) else b.op("add", x, out, to="x")
    return [x]


_BUCKETS = 16
_FARTHEST = 20
"""Logarithms of no whole distance fall on the edge of a bucket, so that float32 and float64 count alike."""


def write_layer(
    b: Builder,
    c: Choices,
    *,
    norm: layers.Norm = layers.layer_norm,
    biases: str = "qkvo",
    crossed: bool = False,
    positions: bool = False,
    act: str = "gelu",
) -> list[str]:
    """A pre-norm layer, or its attention alone: CLIP, Whisper, T5; attention to a context as in diffusion models.

    `biases` names the projections, of q, k, v and o, that have one. `crossed`: keys come from T positions of another
    width, C, and queries may be learned, as in Perceivers. `positions`: a bias per head and bucket of distances.
    """
    length = b.dims["T"]
    head_dim, heads = layers.limit_dims(b), Size.of("H")
    latents = b.input("latents", (1, "S", heads * head_dim), parameter=True) if crossed and c.chance(0.3) else ""
    expanded = b.op("expand", latents, sizes=shape_of("B", -1, -1)) if latents else ""
    x = expanded or layers.draw_stream(b, c, heads * head_dim)
    source = ""
    if crossed:
        b.dims |= {"T": length, "C": c.pick((1, 3, 8, 32))}
        source = b.input("context", ("B", "T", "C"), draw_values(c))
    bias = _position_bias(b, Size.of("S"), heads) if positions else ""
    out, attention = attend_stream(b, c, norm(b, c, x), head_dim, source=source, biases=biases, bias=bias)
    x = b.op("add", x, out, to="x")
    if c.chance(0.3):
        return [b.op("add", x, layers.feed_forward(b, c, norm(b, c, x), act), to="x")]
    return [x, *c.subset(attention.intermediates, 0.1)]


def _position_bias(b: Builder, length: Size, heads: Size) -> str:
    """[1, heads, length, length]: half of the buckets for keys behind, half of each for small distances one by one."""
    rows, columns = position_indices(b, length, length, Size.of(0))
    relative = b.op("sub", columns, rows, to="relative")
    side, exact = _BUCKETS // 2, _BUCKETS // 4
    ahead = b.op("mul", b.op("cast", b.op("gt", relative, to="ahead", other=0), dtype="int64"), other=side)
    distance = b.op("abs", relative, to="distance")
    far = b.op("clamp", b.op("cast", distance, to="far", dtype="float32"), min=1.0, max=1e6)
    logs = b.op("log", b.op("div", far, other=float(exact)), to="logs")
    steps = b.op("mul", b.op("div", logs, other=math.log(_FARTHEST / exact)), other=float(side - exact))
    large = b.op("add", b.op("cast", steps, dtype="int64"), other=exact, to="large")
    most = b.op("full", to="most", sizes=(length, length), value=side - 1, dtype="int64")
    small = b.op("lt", distance, to="small", other=exact)
    bucket = b.op("add", ahead, b.op("where", small, distance, b.op("minimum", large, most)), to="bucket")
    b.dims["K"] = _BUCKETS
    table = b.input("table", ("K", heads), Values(scale=0.5), parameter=True)
    bias = b.op("embedding", bucket, table, to="bias")
    return b.op("unsqueeze", b.op("permute", bias, dims=(2, 0, 1)), dim=0)


def write_bloom(b: Builder, c: Choices) -> list[str]:
    """BLOOM: q, k and v packed within each head, ALiBi as the bias of baddbmm, heads folded into the batch."""
    head_dim = layers.limit_dims(b)
    batch, heads, length = Size.of("B"), Size.of("H"), Size.of("S")
    x = layers.draw_stream(b, c, heads * head_dim)
    packed = layers.linear(b, c, x, "qkv", heads * head_dim * 3, bias=c.chance(0.7))
    packed = b.op("view", packed, sizes=(batch, length, heads, Size.of(3), head_dim))
    q, k, v = (
        b.op("permute", b.op("select", packed, to=name, dim=3, index=i), to=name, dims=(0, 2, 1, 3))
        for i, name in enumerate("qkv")
    )
    folded = [b.op("reshape", value, to="flat", sizes=(batch * heads, length, head_dim)) for value in (q, k, v)]
    steps = b.op("arange", to="steps", start=1, stop=heads + 1, dtype="float32")
    rates = b.op("mul", steps, other=-8 * math.log(2) / max(1, b.size(heads)))
    slopes = b.op("view", b.op("exp", rates, to="slopes"), sizes=shape_of(1, heads, 1, 1))
    alibi = b.op("mul", slopes, b.op("arange", to="positions", stop=length, dtype="float32"), to="alibi")
    alibi = b.op("expand", b.op("cast", alibi, dtype=b.dtype), sizes=(batch, heads, Size.of(1), length))
    bias = b.op("reshape", alibi, to="bias", sizes=(batch * heads, Size.of(1), length))
    scale = 1 / math.sqrt(max(1, b.size(head_dim)))
    kt = b.op("transpose", folded[1], to="kt", dim0=1, dim1=2)
    scores = b.op("baddbmm", bias, folded[0], kt, to="scores", beta=c.pick((1, 1.0)), alpha=scale)
    scores = b.op("view", scores, sizes=(batch, heads, length, length))
    probs = spell_softmax(b, c, apply_mask(b, c, scores, NO_PATTERN), v)
    weights = b.op("view", probs, to="weights", sizes=(batch * heads, length, length))
    out = b.op("view", b.op("bmm", weights, folded[2], to="out"), sizes=(batch, heads, length, head_dim))
    b.end_attention(q, k, v, out, scale=scale, bias=alibi)
    return [layers.project_output(b, c, out, "dense", heads * head_dim, bias=True)] if c.chance(0.6) else [out]


def write_decoder(
    b: Builder,
    c: Choices,
    *,
    norm: layers.Norm = layers.rms_norm,
    head_norm: layers.Norm | None = None,
    bias: bool = False,
    act: str = "silu",
    scales: bool = False,
    parallel: bool = False,
    partial: bool = False,
    grouping: str = "group",
    causal: Sequence[str | None] = (None,),
    window: float = 0.0,
    **features: bool,
) -> list[str]:
    """A decoder layer with rotary positions and grouped queries, or its attention alone.

    `head_norm`: of each head of q and k; `scales`: its input may be multiplied by the root of its width; `parallel`:
    the feed-forward reads what attention reads; `partial`: positions rotate a part of each head; `grouping`: of
    `heads.GROUPS`. `causal` is drawn from; `window` is a probability; `features` are other `AttentionFeatures`.
    """
    rotary_dim = layers.limit_dims(b, even=True)
    query, key, group = layers.draw_groups(b, c, grouping)
    pairs = partial and c.chance(0.6)
    head_dim = rotary_dim + (c.pick((0, 2, 4)) if partial else 0)
    x = layers.draw_stream(b, c, query * head_dim)
    if scales and c.chance(0.6):
        root = math.sqrt(b.size(query * head_dim))
        given = [b.op("scalar", to="root", value=root, dtype=b.dtype)] if c.chance(0.5) else []
        x = b.op("mul", x, *given, to="x", other=None if given else root)
    angles = layers.rotary_angles(b, c, Size.of("S"), Size.of("E"), pairs=pairs)
    normed = norm(b, c, x)
    found = []
    packed = layers.linear(b, c, normed, "qkv", (query + key * 2) * head_dim, bias=bias) if c.chance(0.2) else ""
    ends = (Size.of(0), query, query + key, query + key * 2)
    for name, start, stop, of_heads in zip("qkv", ends, ends[1:], (head_norm, head_norm, None), strict=False):
        if packed:
            part = b.op("narrow", packed, to=name, start=start * head_dim, stop=stop * head_dim)
        else:
            part = layers.linear(b, c, normed, name, (stop - start) * head_dim, bias=bias)
        value = layers.split_head(b, c, part, name, stop - start, head_dim, norm=of_heads).value
        if name != "v" and partial:
            front = b.op("narrow", value, to="front", stop=rotary_dim)
            rest = b.op("narrow", value, to="rest", start=rotary_dim, stop=head_dim)
            value = b.op("cat", layers.rotate(b, front, angles, pairs=pairs), rest, to=name, dim=-1)
            value = b.op("cast", value, dtype="float32") if pairs else value
        elif name != "v":
            value = layers.rotate(b, value, angles)
        found.append(Head.of(value))
    drawn = AttentionFeatures(causal=c.pick(causal), window=c.chance(window), **features)
    attention = attend(b, c, Heads(*found, group=group), drawn)
    out = layers.project_output(b, c, attention.output, "o", query * head_dim, bias=bias)
    if c.chance(0.7):
        return [out, *c.subset([attention.keys, attention.values], 0.2)]
    x = b.op("add", x, out, to="x")
    if c.chance(0.4):
        return [x]
    read = normed if parallel else norm(b, c, x)
    return [b.op("add", x, layers.feed_forward(b, c, read, act, bias=False, gated=act != "gelu"), to="x")]
