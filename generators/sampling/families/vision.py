"""Writers of vision models."""

from generators.program.case import Values
from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.blocks import attend_stream
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_packed_input, draw_values, head_inputs, split_packed
from generators.sampling.layers import feed_forward, layer_norm, limit_dims, linear, modulate, project_output
from generators.sampling.steps import spell_softmax


def write_dit(b: Builder, c: Choices) -> list[str]:
    """DiT: a condition, [B, width], shifts and scales what is normalised and gates what is added (adaLN)."""
    head_dim, heads = limit_dims(b), Size.of("H")
    x = b.input("x", ("B", "S", heads * head_dim), draw_values(c))
    condition = b.op("silu", b.input("condition", ("B", heads * head_dim)))
    wide = b.op("unsqueeze", linear(b, c, condition, "modulation", heads * head_dim * 6, bias=True), dim=1)
    for first in (0, 3):
        shift, scale, gate = (b.op("chunk", wide, to="part", chunks=6, index=first + i) for i in range(3))
        normed = b.op(c.pick(("layer_norm", "rms_norm")), x, to="normed", eps=1e-6)
        normed = modulate(b, c, normed, b.op("add", scale, other=1, reverse=c.chance(0.5), to="factor"), shift)
        out = feed_forward(b, c, normed) if first else attend_stream(b, c, normed, head_dim, biases="qkvo")[0]
        x = b.op("lerp", x, out, gate, to="x") if c.chance(0.2) else modulate(b, c, out, gate, x)
        if c.chance(0.3):
            return [x]
    return [x]


_PLACES, _GRID, _ALL = Size.parse("W*W"), Size.parse("Y*X"), Size.parse("B*Y*X")


def write_swin(b: Builder, c: Choices) -> list[str]:
    """Swin: attention within windows of [B, Y*W, X*W, embed], a bias by relative position, a mask if shifted.

    Version 2 normalises q and k and learns a scale per head.
    """
    b.dims |= {"W": c.pick((1, 2, 3, 4)), "Y": c.pick((1, 2, 3)), "X": c.pick((1, 2, 3)), "B": min(b.dims["B"], 3)}
    head_dim, heads = limit_dims(b), Size.of("H")
    embed = heads * head_dim
    image = b.input("x", ("B", "Y*W", "X*W", embed), draw_values(c))
    shifted = c.chance(0.5)
    if shifted:
        image = b.op("roll", b.op("roll", image, shifts=-1, dim=1), shifts=-1, dim=2)
    x = b.op("view", image, to="windows", sizes=shape_of("B", "Y", "W", "X", "W", embed))
    x = b.op("view", b.op("contiguous", b.op("permute", x, dims=(0, 1, 3, 2, 4, 5))), sizes=(_ALL, _PLACES, embed))
    split = split_packed(b, c, linear(b, c, x, "qkv", embed * 3, bias=True), heads, head_dim)
    q, k, v = split.values
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
        hidden = Values("random_mask", scale=-100.0)
        mask = b.freeze(c, b.input("mask", (_GRID, _PLACES, _PLACES), hidden, parameter=c.chance(0.5)))
        apart = b.op("view", scores, sizes=shape_of("B", _GRID, heads, _PLACES, _PLACES))
        mask = b.op("unsqueeze", b.op("unsqueeze", mask, dim=1), dim=0)
        scores = b.op("view", b.op("add", apart, mask), to="scores", sizes=(_ALL, heads, _PLACES, _PLACES))
    probs = spell_softmax(b, c, scores, v)
    out = b.op("matmul", probs, v, to="out")
    b.deny_unless(not shifted and not second)
    b.end_attention(q, k, v, out, scale=scale, bias=bias)
    merged = project_output(b, c, out, "proj", embed, bias=True)
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
    shape = (_PLACES * _PLACES,) if flat else (_PLACES, _PLACES)
    which = b.input("pairs", shape, Values("tokens", scale=float(rows * rows)), "int64", parameter=True)
    bias = b.op("index", table, which, to="bias")
    if flat:
        bias = b.op("view", bias, sizes=(_PLACES, _PLACES, Size.of(-1)))
    bias = b.op("unsqueeze", b.op("contiguous", b.op("permute", bias, dims=(2, 0, 1))), dim=0)
    return b.op("mul", b.op("sigmoid", bias), other=16, reverse=True) if second else bias


def write_visformer(b: Builder, c: Choices) -> list[str]:
    """Visformer: q, k and v packed as [B, 3*H*D, S], as a convolution leaves them; or three inputs."""
    if c.chance(0.4):
        return [attend(b, c, head_inputs(b, c)).output]
    limit_dims(b)
    packed = b.op("view", b.input("qkv", ("B", "3*H*D", "S"), draw_values(c)), sizes=shape_of("B", 3, "H", "D", "S"))
    packed = b.op("permute", packed, dims=(1, 0, 2, 4, 3))
    parts = (b.op(c.pick(("select", "unbind")), packed, to=name, dim=0, index=i) for i, name in enumerate("qkv"))
    q, k, v = (Head.of(part) for part in parts)
    out = attend(b, c, Heads(q, k, v)).output
    return [
        b.op("reshape", b.op("transpose", out, to="out"), sizes=shape_of("B", "H*D", "S")) if c.chance(0.5) else out
    ]


_IMAGES = ("contiguous", "channels_last")


def write_vit(b: Builder, c: Choices) -> list[str]:
    """ViT: patches of an image and a class token, positions added, one pre-norm layer with packed q, k and v."""
    head_dim = limit_dims(b)
    embed = Size.of("H") * head_dim
    b.dims |= {"Y": c.pick((1, 2, 3, 4)), "X": c.pick((1, 2, 3, 4)), "P": c.pick((1, 2, 4)), "C": c.pick((1, 3))}
    if c.chance(0.5):
        image = b.input("image", ("B", "C", "Y*P", "X*P"), draw_values(c), layout=c.pick(_IMAGES))
        cut = b.op("reshape", image, to="patches", sizes=shape_of("B", "C", "Y", "P", "X", "P"))
        cut = b.op("permute", cut, dims=(0, 2, 4, 3, 5, 1) if c.chance(0.5) else (0, 2, 4, 1, 3, 5))
        x = b.op("reshape", cut, to="x", sizes=shape_of("B", _GRID, "P*P*C"))
        x = linear(b, c, x, "embed", embed, bias=True)
    else:
        # As a convolution leaves it: features before places.
        features = b.input("features", ("B", embed, "Y", "X"), draw_values(c), layout=c.pick(_IMAGES))
        x = b.op("transpose", b.op("flatten", features, to="x", start=2), dim0=1, dim1=2)
    token = b.input("cls", (1, 1, embed), parameter=True)
    x = b.op("cat", b.op("expand", token, sizes=shape_of("B", -1, -1)), x, to="x", dim=1)
    x = b.op("add", x, b.input("positions", (1, _GRID + 1, embed), Values(scale=0.5), parameter=True), to="x")
    qkv = linear(b, c, layer_norm(b, c, x), "qkv", embed * 3, bias=c.chance(0.8))
    attention = attend(b, c, split_packed(b, c, qkv, Size.of("H"), head_dim))
    x = b.op("add", x, project_output(b, c, attention.output, "proj", embed, bias=True), to="x")
    if c.chance(0.3):
        x = b.op("add", x, feed_forward(b, c, layer_norm(b, c, x)), to="x")
    return [b.op("select", x, to="head", dim=1, index=0)] if c.chance(0.3) else [x]


def write_xcit(b: Builder, c: Choices) -> list[str]:
    """XCiT: attention between channels, scores [B, H, D, D] of normalised q and k, with a temperature per head."""
    heads = draw_packed_input(b, c)
    q, k, v = (b.op("transpose", value, to=name) for name, value in zip("qkv", heads.values, strict=True))
    q, k = b.op("normalize", q), b.op("normalize", k)
    scores = b.op("matmul", q, b.op("transpose", k, to="kt"), to="scores")
    shape = c.pick((shape_of("H", 1, 1), shape_of(1, 1, 1)))
    scores = b.op("mul", scores, b.input("temperature", shape, Values("uniform", scale=4.0), parameter=True))
    out = b.op("matmul", spell_softmax(b, c, scores, v), v, to="out")
    return [b.op("permute", out, dims=(0, 3, 1, 2))] if c.chance(0.5) else [out]
