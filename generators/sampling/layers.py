"""The layers that modules around attention are made of: projections, norms, rotary positions, feed-forwards."""

import math
from collections.abc import Callable

from generators.program.case import Values
from generators.program.ops.shaping import quotient
from generators.program.sizes import Size, shape_of
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import GROUPS, Head, draw_values, make_head, merge_heads, split_heads

VOCABULARY = 32
_WIDEST = 256


def limit_dims(b: Builder, *, even: bool = False) -> Size:
    """The head_dim of a module that attends to itself: as many keys as queries, values as wide, at most 256 features.

    With `even` it is 2 * E, as rotary positions need.
    """
    b.dims["T"] = b.dims["S"]
    if b.dims["H"] * b.dims["D"] > _WIDEST:
        b.dims["D"] = 16
    b.dims["V"] = b.dims["D"]
    if not even:
        return Size.of("D")
    b.dims["E"] = max(1, b.dims["D"] // 2)
    return Size.parse("2*E")


def draw_groups(b: Builder, c: Choices, grouping: str = "group") -> tuple[Size, ...]:
    """Query heads, key heads, and how many of the first share one of the second."""
    b.dims["R"] = c.draw({1: 1.0, 2: 4.0, 3: 1.0, 4: 2.0})
    b.dims["G"] = c.draw({1: 3.0, 2: 4.0, 3: 1.0})
    return shape_of(*GROUPS[grouping])


def draw_stream(b: Builder, c: Choices, embed: Size, *, given: float = 0.85) -> str:
    """The input of the layers, [B, S, embed]: a caller's, or a sum of embeddings of tokens, positions and kinds."""
    if c.chance(given):
        return b.input("x", ("B", "S", embed), draw_values(c))
    b.dims["N"] = VOCABULARY
    tokens = b.input("tokens", ("B", "S"), Values("tokens", scale=float(VOCABULARY)), "int64")
    x = b.op("embedding", tokens, b.input("table", ("N", embed), parameter=True), to="x")
    if c.chance(0.6):
        b.dims["P"] = b.dims["S"]
        table = b.input("positions", ("P", embed), Values(scale=0.5), parameter=True)
        at = b.op("arange", to="at", stop="S") if c.chance(0.5) else ""
        x = b.op("add", x, b.op("embedding", at, table) if at else b.op("narrow", table, dim=0, stop="S"))
    if c.chance(0.3):
        kinds = b.input("kinds", ("B", "S"), Values("small_counts"), "int64")
        x = b.op("add", x, b.op("embedding", kinds, b.input("table", (3, embed), parameter=True)))
    return c.pick((layer_norm, rms_norm))(b, c, x) if c.chance(0.4) else x


def linear(b: Builder, c: Choices, x: str, hint: str, out: Size, *, bias: bool) -> str:
    """A linear layer with new weights. Without bias it is sometimes a product with the transposed weight."""
    weight = weight_of(b, c, hint, out, b.shape(x)[-1])
    return apply_linear(
        b, c, x, hint, weight, b.input(f"b_{hint}", (out,), Values(scale=0.1), parameter=True) if bias else ""
    )


def weight_of(b: Builder, c: Choices, hint: str, out: Size, into: Size) -> str:
    """The weight of a linear layer, [out, into], as small as layers begin with."""
    scale = max(1, b.size(into)) ** -0.5
    return b.input(
        f"w_{hint}", (out, into), Values(c.draw({"normal": 5.0, "uniform": 1.0}), scale=round(scale, 4)), parameter=True
    )


def apply_linear(b: Builder, c: Choices, x: str, hint: str, weight: str, bias: str = "") -> str:
    """`x` through a linear layer with existing weights."""
    if c.chance(0.08):
        wt = b.op("transpose", weight, to="wt", dim0=0, dim1=1)
        if not bias:
            return b.op("matmul", x, wt, to=hint)
        rows = b.op("view", b.op("contiguous", x), sizes=(-1, b.shape(x)[-1]))
        return b.op("view", b.op("addmm", bias, rows, wt, to=hint), sizes=(*b.shape(x)[:-1], b.shape(wt)[1]))
    return b.op("linear", x, weight, *([bias] if bias else []), to=hint)


Norm = Callable[[Builder, Choices, str], str]


def project(b: Builder, c: Choices, x: str, hint: str, heads: Size, head_dim: Size, *, bias: bool) -> Head:
    """A linear layer to heads, [B, heads, S, head_dim]."""
    return split_head(b, c, linear(b, c, x, hint, heads * head_dim, bias=bias), hint, heads, head_dim)


def split_head(
    b: Builder, c: Choices, x: str, hint: str, heads: Size, head_dim: Size, *, norm: Norm | None = None
) -> Head:
    """[B, S, heads * head_dim] as [B, heads, S, head_dim], each head normalised."""
    split = split_heads(b, c, x, heads, head_dim)
    if norm is None:
        return make_head(b, c, split, "bshd", hint)
    # Qwen normalises before the axes are permuted, Gemma after.
    early = c.chance(0.5)
    value = make_head(b, c, norm(b, c, split) if early else split, "bshd", hint).value
    return Head.of(value if early else norm(b, c, value))


def project_output(b: Builder, c: Choices, value: str, hint: str, embed: Size, *, bias: bool) -> str:
    """The output projection: [B, H, S, D] merged, then a linear layer to [B, S, embed]."""
    return linear(b, c, merge_heads(b, c, value), hint, embed, bias=bias)


def layer_norm(b: Builder, c: Choices, x: str) -> str:
    """nn.LayerNorm over the last axis."""
    size = b.shape(x)[-1]
    weight = b.input("gain", (size,), Values("uniform", scale=2.0), parameter=True)
    shift = b.input("shift", (size,), Values(scale=0.1), parameter=True)
    if c.chance(0.1):
        centred = b.op("sub", x, b.op("mean", x, to="mean", keepdim=True), to="centred")
        kind = c.pick(("std", "var"))
        spread = b.op("add", b.op(kind, x, to="spread", keepdim=True, correction=c.pick((0, 1))), other=1e-5)
        root = b.op("sqrt", spread) if kind == "var" else spread
        return modulate(b, c, b.op("div", centred, root, to="normed"), weight, shift)
    return b.op("layer_norm", x, weight, shift, to="normed", eps=c.draw({None: 2.0, 1e-5: 2.0, 1e-6: 1.0, 1e-12: 1.0}))


def modulate(b: Builder, c: Choices, x: str, factor: str, shift: str) -> str:
    """The value times a factor, plus a shift."""
    fused = c.chance(0.5)
    return b.op("addcmul", shift, x, factor) if fused else b.op("add", b.op("mul", x, factor), shift, to="x")


def rms_norm(b: Builder, c: Choices, x: str, *, around_one: bool = False) -> str:
    """RMSNorm over the last axis, in float32 and back as in Llama, or fused; `around_one`: (1 + weight) as in Gemma."""
    size = b.shape(x)[-1]
    spread = Values(scale=0.2) if around_one else Values("uniform", scale=2.0)
    weight = b.input("gain", (size,), spread, parameter=True)
    if not around_one and c.chance(0.4):
        return b.op("rms_norm", x, weight, to="normed", eps=c.pick((None, 1e-6)))
    wide = b.op("cast", x, to="wide", dtype="float32", form=c.pick(("to", "method")))
    squares = b.op("pow", wide, to="squares") if c.chance(0.7) else b.op("square", wide, to="squares")
    variance = b.op("mean", squares, to="variance", dim=-1, keepdim=True)
    normed = b.op("mul", wide, b.op("rsqrt", b.op("add", variance, other=c.pick((1e-6, 1e-5)))), to="normed")
    if around_one:
        # Gemma multiplies before it goes back to the low dtype, Llama after.
        gain = b.op("add", b.op("cast", weight, to="gain", dtype="float32"), other=1.0, reverse=True)
        return b.op("type_as", b.op("mul", normed, gain), x)
    return b.op("mul", weight, b.op("cast", normed, dtype=b.dtype_of(x)), to="normed")


def rotary_angles(
    b: Builder, c: Choices, length: Size, half: Size, *, start: Size | None = None, pairs: bool = False
) -> tuple[str, ...]:
    """Cosines and sines of rotary positions, [length, 2 * half], given or computed; with `pairs` angles repeat. For
    complex numbers the angles alone, [length, half]."""
    is_complex = c.chance(0.1)
    if not is_complex and c.chance(0.65):
        return tuple(b.input(name, (length, half * 2), Values("uniform", scale=2.0)) for name in ("cos", "sin"))
    first = start or Size.of(0)
    places = b.op(
        "unsqueeze", b.op("arange", to="positions", start=first, stop=first + length, dtype="float32"), dim=-1
    )
    steps = b.op("arange", to="steps", stop=half, dtype="float32")
    rate = -math.log(c.pick((1e4, 1e4, 5e5))) / max(1, b.size(half))
    angles = b.op("mul", places, b.op("exp", b.op("mul", steps, other=rate), to="rates"), to="angles")
    if is_complex:
        return (angles,)
    angles = b.op("repeat_interleave", angles, dim=-1, repeats=2) if pairs else b.op("cat", angles, angles, dim=-1)
    found = []
    for kind in ("cos", "sin"):
        value = b.op(kind, angles, to=kind)
        found.append(b.op("cast", value, dtype=b.dtype) if b.dtype != "float32" else value)
    return tuple(found)


def rotate(b: Builder, x: str, angles: tuple[str, ...], *, pairs: bool = False) -> str:
    """Rotary positions, as `rotary_angles` gives them, applied to [..., S, D]: the halves of the last axis rotated, or
    with `pairs` its neighbours."""
    if len(angles) == 1:
        return b.op("rotate_complex", x, *angles, to="rotated")
    size, (cos, sin) = b.shape(x)[-1], angles
    if pairs:
        even = b.op("narrow", x, to="even", stop=size, step=2)
        odd = b.op("narrow", x, to="odd", start=1, stop=size, step=2)
        rotated_half = b.op(
            "flatten", b.op("stack", b.op("neg", odd), even, to="rotated_half", dim=-1), start=-2, end=-1
        )
    else:
        middle = quotient(size, Size.of(2), b.size(size) // 2)
        low, high = b.op("narrow", x, to="low", stop=middle), b.op("narrow", x, to="high", start=middle, stop=size)
        rotated_half = b.op("cat", b.op("neg", high), low, to="rotated_half", dim=-1)
    return b.op("add", b.op("mul", x, cos), b.op("mul", rotated_half, sin), to="rotated")


def feed_forward(
    b: Builder, c: Choices, x: str, act: str = "gelu", *, bias: bool = True, times: int = 2, gated: bool = False
) -> str:
    """Two linear layers with an activation between; `gated`: times a third one, as in SwiGLU."""
    size = b.shape(x)[-1]
    options = {"approximate": c.pick(("none", "tanh"))} if act == "gelu" else {}
    wide = linear(b, c, x, "gate" if gated else "up", size * times, bias=bias)
    if act == "quick_gelu":
        hidden = b.op("mul", wide, b.op("sigmoid", b.op("mul", wide, other=1.702), to="gate"), to="hidden")
    else:
        hidden = b.op(act, wide, to="hidden", **options)
    if gated:
        hidden = b.op("mul", hidden, linear(b, c, x, "up", size * times, bias=bias), to="hidden")
    if c.chance(0.05):
        hidden = b.op("dropout", hidden, p=0.1, form=c.pick(("module", "functional")))
    return linear(b, c, hidden, "down", size, bias=bias)
