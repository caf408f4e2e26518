"""T5 with its positions: distances sorted into buckets, a bias for each bucket and head, softmax in float32 and back."""

import math

from generators.program.case import Values
from generators.program.sizes import Size
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families import t5
from generators.sampling.families.family import Family
from generators.sampling.heads import Heads
from generators.sampling.layers import bounded, linear, project, rms_norm, stream
from generators.sampling.merge_heads import merge_heads
from generators.sampling.position_masks import places

_BUCKETS = 16
_FARTHEST = 20
"""Logarithms of no whole distance fall on the edge of a bucket, so that float32 and float64 count alike."""


def write(b: Builder, c: Choices) -> list[str]:
    """A layer that attends to itself, with T5's norm before it."""
    head_dim, heads = bounded(b), Size.of("H")
    x = stream(b, c, heads * head_dim)
    normed = rms_norm(b, c, x)
    q, k, v = (project(b, c, normed, name, heads, head_dim, bias=False) for name in "qkv")
    bias = _position_bias(b, Size.of("S"), heads)
    c.habits = {**c.habits, "mask.kind": "add" if c.chance(0.4) else "none"}
    attended = attend(b, c, Heads(q, k, v, Size.of(1)), c.wildness / 5, bias=bias)
    out = linear(b, c, merge_heads(b, c, attended.output), "o", heads * head_dim, bias=False)
    return [b.op("add", x, out, to="x"), *c.subset([bias, attended.keys, attended.values], 0.15)]


def _position_bias(b: Builder, length: Size, heads: Size) -> str:
    """[1, heads, length, length]: half of the buckets for keys behind, half of each for small distances one by one."""
    rows, columns = places(b, length, length, Size.of(0))
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


FAMILY = Family(weight=1.0, habits=t5.FAMILY.habits, write=write)
