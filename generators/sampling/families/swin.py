"""Swin: attention within windows of an image, with a bias by relative place, and a mask where windows were shifted."""

from generators.program.case import Contract, Values
from generators.program.sizes import Size, shape_of
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values, split_packed
from generators.sampling.layers import bounded, linear
from generators.sampling.merge_heads import merge_heads
from generators.sampling.softmax import spell_softmax

_PLACES = Size.parse("W*W")
_WINDOWS = Size.parse("Y*X")
_ALL = Size.parse("B*Y*X")


def write(b: Builder, c: Choices) -> list[str]:
    """One attention over [B, Y * W, X * W, embed]; version 2 compares directions and learns a scale a head."""
    b.dims |= {"W": c.pick((1, 2, 3, 4)), "Y": c.pick((1, 2, 3)), "X": c.pick((1, 2, 3)), "B": min(b.dims["B"], 3)}
    head_dim, heads = bounded(b), Size.of("H")
    embed = heads * head_dim
    image = b.input("x", ("B", "Y*W", "X*W", embed), draw_values(c))
    shifted = c.chance(0.5)
    if shifted:
        image = b.op("roll", b.op("roll", image, shifts=-1, dim=1), shifts=-1, dim=2)
    x = b.op("view", image, to="windows", sizes=shape_of("B", "Y", "W", "X", "W", embed))
    x = b.op("view", b.op("contiguous", b.op("permute", x, dims=(0, 1, 3, 2, 4, 5))), sizes=(_ALL, _PLACES, embed))
    split = split_packed(b, c, linear(b, c, x, "qkv", embed * 3, bias=True), heads, head_dim)
    q, k, v = split.q.value, split.k.value, split.v.value
    second, scale = c.chance(0.4), 1.0
    if second:
        q, k = b.op("normalize", q), b.op("normalize", k)
    else:
        scale = max(1, b.size(head_dim)) ** -0.5
    scaled = q if second else b.op("mul", q, other=scale)
    scores = b.op("matmul", scaled, b.op("transpose", k, to="kt"), to="scores")
    if second:
        learned = b.input("logit_scale", (heads, 1, 1), Values("constant", scale=2.3), parameter=True)
        scores = b.op("mul", scores, b.op("exp", b.op("clamp", learned, to="factor", max=4.6052)), to="scores")
    bias = _relative(b, c, heads, second=second)
    scores = b.op("add", scores, bias, to="scores")
    if shifted:
        mask = b.fixed(
            c,
            b.input("mask", (_WINDOWS, _PLACES, _PLACES), Values("random_mask", scale=-100.0), parameter=c.chance(0.5)),
        )
        apart = b.op("view", scores, sizes=shape_of("B", _WINDOWS, heads, _PLACES, _PLACES))
        mask = b.op("unsqueeze", b.op("unsqueeze", mask, dim=1), dim=0)
        scores = b.op("view", b.op("add", apart, mask), to="scores", sizes=(_ALL, heads, _PLACES, _PLACES))
    probs = spell_softmax(b, c, scores, v)
    out = b.op("matmul", probs.value, v, to="out")
    if probs.contractual and not shifted and not second:
        b.contracts.append(Contract(q, k, v, out, scale=scale, bias=bias))
    merged = linear(b, c, merge_heads(b, c, out), "proj", embed, bias=True)
    if c.chance(0.4):
        return [merged]
    back = b.op("view", merged, to="x", sizes=shape_of("B", "Y", "X", "W", "W", embed))
    back = b.op("permute", back, dims=(0, 1, 3, 2, 4, 5))
    return [b.op("reshape", back, sizes=shape_of("B", "Y*W", "X*W", embed))]


def _relative(b: Builder, c: Choices, heads: Size, *, second: bool) -> str:
    """[1, heads, places, places]: a table read at the relative place of each pair."""
    rows = 2 * b.dims["W"] - 1
    b.dims["N"] = rows * rows
    table = b.input("table", ("N", heads), Values(scale=0.5), parameter=True)
    flat = c.chance(0.5)
    which = b.input(
        "pairs",
        (_PLACES * _PLACES,) if flat else (_PLACES, _PLACES),
        Values("tokens", scale=float(rows * rows)),
        "int64",
        parameter=True,
    )
    bias = b.op("index", table, which, to="bias")
    if flat:
        bias = b.op("view", bias, sizes=(_PLACES, _PLACES, Size.of(-1)))
    bias = b.op("unsqueeze", b.op("contiguous", b.op("permute", bias, dims=(2, 0, 1))), dim=0)
    return b.op("mul", b.op("sigmoid", bias), other=16, reverse=True) if second else bias


FAMILY = Family(weight=2.5, habits={"softmax.upcast": "none"}, write=write)
