"""Writers of encoders: BERT-like and T5-like layers."""

import math

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Heads, make_head, split_heads
from generators.sampling.layers import apply_linear, draw_stream, layer_norm, limit_dims, project, rms_norm, weight_of
from generators.sampling.merge_heads import merge_heads, project_output
from generators.sampling.position_masks import position_indices


def write_albert(b: Builder, c: Choices) -> list[str]:
    """ALBERT and BERT: two or three post-norm layers without feed-forward, sharing their weights or not."""
    head_dim, heads = limit_dims(b), Size.of("H")
    embed = heads * head_dim
    x, shared = draw_stream(b, c, embed), c.chance(0.6)
    weights: dict[str, str] = {}
    for _ in range(c.weighted({2: 4.0, 3: 1.0})):
        if not weights or not shared:
            weights = {name: weight_of(b, c, name, embed, embed) for name in "qkvo"}
        found = []
        for name in "qkv":
            split = split_heads(b, c, apply_linear(b, c, x, name, weights[name]), heads, head_dim)
            found.append(make_head(b, c, split, "bshd", name))
        attention = attend(b, c, Heads(*found))
        out = apply_linear(b, c, merge_heads(b, c, attention.output), "o", weights["o"])
        x = layer_norm(b, c, b.op("add", x, out, to="x")) if c.chance(0.7) else b.op("add", x, out, to="x")
    return [x]


_BUCKETS = 16
_FARTHEST = 20
"""Logarithms of no whole distance fall on the edge of a bucket, so that float32 and float64 count alike."""


def write_t5_positions(b: Builder, c: Choices) -> list[str]:
    """T5: a pre-norm layer with a bias per head and bucket of distances."""
    head_dim, heads = limit_dims(b), Size.of("H")
    x = draw_stream(b, c, heads * head_dim)
    normed = rms_norm(b, c, x)
    q, k, v = (project(b, c, normed, name, heads, head_dim, bias=False) for name in "qkv")
    bias = _position_bias(b, Size.of("S"), heads)
    c.preferences = {**c.preferences, "mask.kind": "add" if c.chance(0.4) else "none"}
    attention = attend(b, c, Heads(q, k, v), bias=bias)
    out = project_output(b, c, attention.output, "o", heads * head_dim, bias=False)
    return [b.op("add", x, out, to="x"), *c.subset([bias, attention.keys, attention.values], 0.15)]


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
