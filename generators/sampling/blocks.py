"""Modules around attention: embedding, norms, projections, rotary positions, residuals, feed-forward."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from generators.program.case import Values
from generators.program.sizes import Size, quotient
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import (
    GROUPS,
    Operand,
    Qkv,
    draw_values,
    make_flat_operand,
    make_operand,
    merge_heads,
    split_heads,
    split_packed,
)
from generators.sampling.steps import AttentionExtras, insert_noop

VOCABULARY = 32
_WIDEST = 256


def limit_dims(b: Builder, *, even: bool = False) -> Size:
    """Sets dimensions for self attention (T = S, V = D, at most 256 features), and returns head_dim.

    `even`: head_dim is 2 * E, as rotary positions need.
    """
    b.dims["T"] = b.dims["S"]
    if b.dims["H"] * b.dims["D"] > _WIDEST:
        b.dims["D"] = 16
    b.dims["V"] = b.dims["D"]
    if not even:
        return Size.of("D")
    b.dims["E"] = max(1, b.dims["D"] // 2)
    return Size.parse("2*E")


def draw_groups(b: Builder, c: Choices, grouping: str) -> tuple[Size, ...]:
    """Query heads, key heads, and how many query heads share a key head."""
    b.dims["R"] = c.draw({1: 1.0, 2: 4.0, 3: 1.0, 4: 2.0})
    b.dims["G"] = c.draw({1: 3.0, 2: 4.0, 3: 1.0})
    return tuple(map(Size.of, GROUPS[grouping]))


def draw_stream(b: Builder, c: Choices, embed: Size) -> str:
    """The input of the layers, [B, S, embed]: a caller's, or a sum of embeddings of tokens and positions."""
    if c.chance(0.7):
        return b.input("x", ("B", "S", embed), draw_values(c))
    b.dims["N"] = VOCABULARY
    tokens = b.input("tokens", ("B", "S"), Values("tokens", scale=float(VOCABULARY)), "int64")
    x = b.op("embedding", tokens, b.input("table", ("N", embed), parameter=True), to="x")
    if c.chance(0.6):
        b.dims["P"] = b.dims["S"]
        table = b.input("positions", ("P", embed), Values(scale=0.5), parameter=True)
        at = b.op("arange", to="at", stop="S") if c.chance(0.5) else ""
        x = b.op("add", x, b.op("embedding", at, table) if at else b.op("narrow", table, dim=0, stop="S"))
    return x


def linear(b: Builder, c: Choices, x: str, hint: str, out: Size, *, bias: bool) -> str:
    """A linear layer with new weights, as small as layers begin with, or a product with the transposed weight."""
    into, kind = b.shape(x)[-1], c.draw({"normal": 5.0, "uniform": 1.0})
    scale = round(max(1, b.size(into)) ** -0.5, 4)
    weight = b.input(f"w_{hint}", (out, into), Values(kind, scale=scale), parameter=True)
    biases = [b.input(f"b_{hint}", (out,), Values(scale=0.1), parameter=True)] if bias else []
    if not c.chance(0.08):
        return b.op("linear", x, weight, *biases, to=hint)
    wt = b.op("transpose", weight, to="wt", dim0=0, dim1=1)
    if not bias:
        return b.op("matmul", x, wt, to=hint)
    rows = b.op("view", b.op("contiguous", x), sizes=(-1, into))
    return b.op("view", b.op("addmm", *biases, rows, wt, to=hint), sizes=(*b.shape(x)[:-1], out))


def project(b: Builder, c: Choices, hint: str, x: str, heads: Size, head_dim: Size, *, bias: bool) -> Operand:
    """A linear layer to heads, [B, heads, S, head_dim]."""
    wide = linear(b, c, x, hint, heads * head_dim, bias=bias)
    return make_operand(b, c, split_heads(b, c, wide, heads, head_dim), "bshd", hint)


def layer_norm(b: Builder, c: Choices, x: str) -> str:
    size = b.shape(x)[-1]
    weight = b.input("gain", (size,), Values("uniform", scale=2.0), parameter=True)
    shift = b.input("shift", (size,), Values(scale=0.1), parameter=True)
    return b.op("layer_norm", x, weight, shift, to="normed", eps=c.draw({None: 2.0, 1e-5: 2.0, 1e-6: 1.0, 1e-12: 1.0}))


def rms_norm(b: Builder, c: Choices, x: str) -> str:
    """RMSNorm over the last axis, in float32 and back as in Llama, or fused."""
    weight = b.input("gain", (b.shape(x)[-1],), Values("uniform", scale=2.0), parameter=True)
    if c.chance(0.4):
        return b.op("rms_norm", x, weight, to="normed", eps=c.pick((None, 1e-6)))
    wide = b.op("cast", x, to="wide", dtype="float32", form=c.pick(("to", "method")))
    variance = b.op("mean", b.op("pow", wide, to="squares"), to="variance", dim=-1, keepdim=True)
    normed = b.op("mul", wide, b.op("rsqrt", b.op("add", variance, other=c.pick((1e-6, 1e-5)))), to="normed")
    return b.op("mul", weight, b.op("cast", normed, dtype=b.dtype_of(x)), to="normed")


def running_norm(b: Builder, c: Choices, x: str) -> str:
    """A norm over batch and sequence, whose running mean and variance are buffers, as in BatchNorm."""
    found = {}
    for name, value in (("mean", x), ("var", b.op("pow", x, to="squares"))):
        found[name] = b.op("mean", b.op("mean", value, to=name, dim=0), to=name, dim=0)
        running = b.input(f"running_{name}", b.shape(found[name]), Values("constant"), buffer=True)
        new, rate = b.op("detach", found[name]), c.pick((0.1, 0.01))
        if c.chance(0.5):
            running = b.op("lerp_", running, new, weight=rate)
        else:
            running = b.op("mul_", running, other=1 - rate, form=c.pick(("method", "operator")))
            running = b.op("add_", running, b.op("mul", new, other=rate))
        found[name] = running if c.chance(0.5) else found[name]
    b.op("add_", b.input("batches", (), Values("zero_one"), "int64", buffer=True), other=1)
    deviation = b.op("rsqrt", b.op("add", b.op("abs", found["var"]), other=1e-5), to="scale")
    return b.op("mul", b.op("sub", x, found["mean"], to="normed"), deviation)


Norm = Callable[[Builder, Choices, str], str]
NORMS: Mapping[str, Norm] = {"layer": layer_norm, "rms": rms_norm, "running": running_norm, "none": lambda _b, _c, x: x}


_COMPLEX_SHARE = 0.25  # the share of rotary positions with complex numbers, as Llama 4 and Flux write them


def rotary_angles(b: Builder, c: Choices, length: Size, half: Size, start: Size | int = 0) -> tuple[str, ...]:
    """Cosines and sines of rotary positions, [length, 2 * half], or complex numbers, [length, half]; given or made."""
    is_complex = c.chance(_COMPLEX_SHARE)
    if is_complex and c.chance(0.5):
        pairs = b.input("freqs", (length, half, 2), Values("uniform", scale=2.0), "float32", buffer=c.chance(0.5))
        return (b.op("view_as_complex", pairs, to="freqs_cis"),)
    if not is_complex and c.chance(0.65):
        return tuple(b.input(name, (length, half * 2), Values("uniform", scale=2.0)) for name in ("cos", "sin"))
    first = Size.of(start)
    places = b.op("arange", to="positions", start=first, stop=first + length, dtype="float32")
    steps = b.op("arange", to="steps", stop=half, dtype="float32")
    rate = -math.log(c.pick((1e4, 1e4, 5e5))) / max(1, b.size(half))
    rates = b.op("exp", b.op("mul", steps, other=rate), to="rates")
    angles = b.op("mul", b.op("unsqueeze", places, dim=-1), rates, to="angles")
    if is_complex:
        return (b.op("polar", b.op("ones_like", angles, to="ones"), angles, to="freqs_cis"),)
    angles = b.op("cat", angles, angles, dim=-1)
    found = (b.op(kind, angles, to=kind) for kind in ("cos", "sin"))
    return tuple(b.op("cast", value, dtype=b.dtype) if b.dtype != "float32" else value for value in found)


def rotate(b: Builder, x: str, angles: tuple[str, ...]) -> str:
    """Rotary positions, as `rotary_angles` gives them, applied to [..., S, D]: the halves of the last axis rotated, or
    with complex numbers its pairs."""
    size = b.shape(x)[-1]
    middle = quotient(size, Size.of(2), b.size(size) // 2)
    if len(angles) == 1:
        wide = b.op("cast", x, to="wide", dtype="float32", form="method")
        pairs = b.op("reshape", wide, to="pairs", sizes=(*b.shape(x)[:-1], middle, 2))
        turned = b.op("mul", b.op("view_as_complex", pairs, to="numbers"), *angles, to="turned")
        flat = b.op("flatten", b.op("view_as_real", turned, to="parts"), to="rotated", start_dim=-2)
        return b.op("type_as", flat, x, to="rotated")
    cos, sin = angles
    low, high = b.op("narrow", x, to="low", stop=middle), b.op("narrow", x, to="high", start=middle, stop=size)
    rotated_half = b.op("cat", b.op("neg", high), low, to="rotated_half", dim=-1)
    return b.op("add", b.op("mul", x, cos), b.op("mul", rotated_half, sin), to="rotated")


def feed_forward(b: Builder, c: Choices, x: str, act: str, *, bias: bool, times: int, gated: bool) -> str:
    """Two linear layers with an activation between. `gated`: times a third linear layer, as in SwiGLU."""
    size = b.shape(x)[-1]
    options = {"approximate": c.pick(("none", "tanh"))} if act == "gelu" else {}
    wide = linear(b, c, x, "gate" if gated else "up", size * times, bias=bias)
    hidden = b.op(act, wide, to="hidden", **options)
    if gated:
        hidden = b.op("mul", hidden, linear(b, c, x, "up", size * times, bias=bias), to="hidden")
    if c.chance(0.05):
        hidden = b.op("dropout", hidden, p=0.1, form=c.pick(("module", "functional")))
    return linear(b, c, hidden, "down", size, bias=bias)


@dataclass(frozen=True, slots=True)
class _Style:
    """Decisions that hold throughout a module."""

    embed: Size
    head_dim: Size
    norm: Norm = layer_norm
    residual: str = "none"
    projection: str = "separate"
    groups: tuple[Size, ...] = ()  # as `draw_groups` gives them
    angles: tuple[str, ...] = ()  # cosines and sines of rotary positions
    context: str = ""  # the source of keys and values in cross attention; "": the layer's input
    bias: bool = True


def block_module(b: Builder, c: Choices, extras: AttentionExtras) -> list[str]:
    """Write a module of one or two layers around attention. Returns the names of its results."""
    length, is_rotary = b.dims["T"], c.choose("positions", {"none": 9.0, "rotary": 1.0}) == "rotary"
    head_dim = limit_dims(b, even=is_rotary)
    projection = c.choose("projection", {"separate": 6.0, "packed": 3.0, "grouped": 2.0, "one_head": 1.5, "context": 1})
    style = _Style(
        embed=Size.of("H") * head_dim,
        head_dim=head_dim,
        norm=NORMS[c.choose("norm", {"layer": 5.0, "rms": 4.0, "none": 4.0, "running": 0.2})],
        residual=c.choose("residual", {"none": 5.0, "pre": 5.0, "post": 2.0, "parallel": 2.0}),
        projection=projection,
        groups=draw_groups(b, c, c.pick(("group", "one"))) if projection == "grouped" else (),
        angles=rotary_angles(b, c, Size.of("S"), Size.of("E")) if is_rotary else (),
        bias=c.chance(0.5),
    )
    if projection == "context":
        b.dims["T"] = length
        style = replace(style, context=b.input("memory", ("B", "T", style.embed), draw_values(c)), angles=())
    x = draw_stream(b, c, style.embed)
    for _ in range(c.choose("layers", {1: 9.0, 2: 1.0})):
        before = style.norm(b, c, x) if style.residual != "post" else x
        output, intermediates = attend(b, c, _project(b, c, style, before), extras)
        merged = insert_noop(b, c, merge_heads(b, c, output))
        out = linear(b, c, merged, "o", style.embed, bias=style.bias)
        x = _around(b, c, style, x, before, out)
    return [x, *(c.subset(intermediates, 0.5) if c.chance(0.1) else [])]


def _project(b: Builder, c: Choices, style: _Style, x: str) -> Qkv:
    heads = Size.of("H")
    if style.projection == "one_head":
        single = c.chance(0.6)
        flat = {name: linear(b, c, x, name, style.embed, bias=style.bias) for name in "qkv"}
        return Qkv(*(make_flat_operand(b, c, value, "bsd", name, single=single) for name, value in flat.items()))
    if style.projection == "packed":
        packed = linear(b, c, x, "qkv", style.embed * 3, bias=style.bias)
        found = split_packed(b, c, packed, heads, style.head_dim)
    else:
        query, key, group = style.groups or (heads, heads, Size.of(1))
        context = style.context or x
        streams = (("q", x, query), ("k", context, key), ("v", context, key))
        projected = (project(b, c, *stream, style.head_dim, bias=style.bias) for stream in streams)
        found = Qkv(*projected, group=group)
    if not style.angles:
        return found
    q, k = (Operand.of(rotate(b, operand.value, style.angles)) for operand in (found.q, found.k))
    return replace(found, q=q, k=k)


def _around(b: Builder, c: Choices, style: _Style, x: str, before: str, attention: str) -> str:
    """The residual around the attention and the feed-forward, in the style's arrangement."""
    feeds = c.chance(0.5)

    def feed(value: str) -> str:
        act = c.draw({"gelu": 4.0, "relu": 3.0, "silu": 4.0})
        gated = act == "silu" and c.chance(0.5)
        return feed_forward(b, c, value, act, bias=style.bias, times=c.pick((1, 2, 4)), gated=gated)

    if style.residual == "none":
        return feed(attention) if feeds and c.chance(0.4) else attention
    # Conformers add half of the output.
    total = b.op("add", x, attention, to="x", alpha=c.draw({1: 9.0, 0.5: 1.0}))
    if style.residual == "parallel":
        return b.op("add", total, feed(before), to="x") if feeds else total
    if style.residual == "post":
        total = style.norm(b, c, total)
    if not feeds:
        return total
    inner = style.norm(b, c, total) if style.residual == "pre" else total
    out = b.op("add", total, feed(inner), to="x")
    return style.norm(b, c, out) if style.residual == "post" else out
