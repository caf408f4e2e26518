"""Writers of other attention than self-attention: cross, latent, linear, local, slot attention, and over views."""

from generators.program.sizes import Size, shape_of
from generators.sampling.attention import attend
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Head, Heads, draw_layout, draw_values, make_head, merge_heads, permute_axes
from generators.sampling.layers import layer_norm, limit_dims, linear
from generators.sampling.masks import draw_ranks, pick_top


def write_latent_attention(b: Builder, c: Choices) -> list[str]:
    """DeepSeek's latent attention over [B, length, H, dim]: part of each key is shared by all heads.

    Values are narrower than keys; the fused call has no fused kernel for such sizes on the CPU.
    """
    b.dims |= {"A": c.pick((1, 2, 4, 8)), "V": b.dims["D"] if c.chance(0.9) else b.dims["V"]}
    q = b.input("q", ("B", "S", "H", "D+A"), draw_values(c))
    plain = b.input("k", ("B", "T", "H", "D"), draw_values(c))
    shared = b.op("expand", b.input("k_rot", ("B", "T", 1, "A")), sizes=shape_of("B", "T", "H", "A"))
    k = b.op("cat", plain, shared, to="keys", dim=-1)
    v = b.input("v", ("B", "T", "H", "V"), draw_values(c))
    found = [make_head(b, c, x, "bshd", name) for name, x in (("q", q), ("k", k), ("v", v))]
    return [attend(b, c, Heads(*found)).output]


def write_linear_attention(b: Builder, c: Choices) -> list[str]:
    """Linear attention: (elu(q) + 1) times (k' v), no softmax. Or retention: causal weights that decay."""
    retained = c.chance(0.4)
    if retained:
        b.dims["T"] = b.dims["S"]
    order = c.pick(("bhsd", "bshd"))
    shapes = {"q": "BHSD", "k": "BHTD", "v": "BHTV"}
    q, k, v = (
        permute_axes(
            b, c, b.input(name, [shape["bhsd".index(axis)] for axis in order], draw_values(c)), order, "bhsd", name
        )
        for name, shape in shapes.items()
    )
    feature = c.pick(("elu", "elu", "relu", "softplus"))
    q, k = (b.op("add", b.op(feature, value), other=1.0) for value in (q, k))
    kt = b.op("transpose", k, to="kt")
    if retained:
        weights = b.op("mul", b.op("matmul", q, kt, to="weights"), _decay(b, c))
        out = b.op("matmul", weights, v, to="out")
    elif c.chance(0.3):
        # The order of softmax attention, normalised afterwards.
        weights = b.op("matmul", q, kt, to="weights")
        total = b.op("sum", weights, to="total", dim=-1, keepdim=True)
        out = b.op("matmul", b.op("div", weights, total), v, to="out")
    else:
        kv = b.op("matmul", kt, v, to="kv")
        total = b.op("matmul", q, b.op("sum", kt, to="total", dim=-1, keepdim=True), to="total")
        out = b.op("div", b.op("matmul", q, kv, to="out"), b.op("add", total, other=1e-6) if c.chance(0.5) else total)
    return [merge_heads(b, c, out) if c.chance(0.4) else out]


def _decay(b: Builder, c: Choices) -> str:
    """[B, H, S, S]: the product of the gates between a query and an earlier key, 0 for later keys."""
    gates = b.op("sigmoid", b.op("add", b.input("gates", ("B", "H", "S")), other=4.0), to="gates")
    divided = c.chance(0.5)
    total = b.op("cumprod", gates, to="total") if divided else b.op("cumsum", b.op("log", gates), to="total")
    rows, columns = (b.op("unsqueeze", total, dim=dim) for dim in (-1, -2))
    decay = b.op("div", rows, columns, to="decay") if divided else b.op("exp", b.op("sub", rows, columns, to="decay"))
    return b.op("tril", decay)


def write_local_attention(b: Builder, c: Choices) -> list[str]:
    """Local attention as in Longformer: Y blocks of W queries, each over a window of three blocks of keys.

    There are Y + 2 blocks of keys, or Y and padding. Blocks go into the batch axis.
    """
    b.dims |= {"W": c.pick((1, 2, 4, 8)), "Y": c.pick((1, 2, 3, 5)), "B": min(b.dims["B"], 4)}
    batch, heads, block, count = (Size.of(name) for name in "BHWY")
    wide = b.dims["W"]
    found = []
    for name, dim in (("q", Size.of("D")), ("k", Size.of("D")), ("v", Size.of("V"))):
        if name == "q":
            value = b.input("q", (batch, heads, count * block, dim), draw_values(c))
            value = b.op("view", value, sizes=(batch, heads, count, block, dim))
            value = b.op("permute", value, dims=(0, 2, 1, 3, 4))
            length = block
        else:
            padded = c.chance(0.5)
            value = b.input(name, (batch, heads, (count if padded else count + 2) * block, dim), draw_values(c))
            value = b.op("pad", value, dim=2, before=block, after=block) if padded else value
            value = b.op("unfold", value, dim=2, size=block * 3, step=wide)
            value = b.op("permute", value, dims=(0, 2, 1, 4, 3))
            length = block * 3
        value = b.op("reshape", value, sizes=(batch * count, heads, length, dim))
        found.append(Head.of(value))
    out = attend(b, c, Heads(*found)).output
    if c.chance(0.5):
        return [out]
    apart = b.op("reshape", out, to="blocks", sizes=shape_of(batch, count, heads, block, "V"))
    apart = b.op("permute", apart, dims=(0, 2, 1, 3, 4))
    return [b.op("reshape", apart, to="out", sizes=shape_of(batch, heads, count * block, "V"))]


def write_slot_attention(b: Builder, c: Choices) -> list[str]:
    """Slot attention: softmax over the S slots, then weights that sum to 1 over the T positions; one or two rounds."""
    length = b.dims["T"]
    head_dim = limit_dims(b)
    b.dims["T"] = length
    x = layer_norm(b, c, b.input("x", ("B", "T", head_dim), draw_values(c)))
    slots = b.input("slots", ("B", "S", head_dim), draw_values(c))
    k, v = (linear(b, c, x, name, head_dim, bias=False) for name in "kv")
    scale = max(1, b.size(head_dim)) ** -0.5
    for _ in range(c.pick((1, 1, 2))):
        q = linear(b, c, layer_norm(b, c, slots), "q", head_dim, bias=False)
        if c.chance(0.5):
            q = b.op("mul", q, other=scale)
        if c.chance(0.5):
            scores = b.op("matmul", q, b.op("transpose", k, to="kt"), to="scores")
        else:
            scores = b.op("einsum", q, k, to="scores", equation="bid,bjd->bij")
        if c.chance(0.5):
            scores = b.op("mul", scores, other=scale)
        probs = b.op("softmax", scores, to="probs", dim=c.pick((1, -2)), form=c.pick(("method", "functional")))
        probs = b.op("add", probs, other=1e-8 if b.dtype == "float32" else 1e-3) if c.chance(0.8) else probs
        weights = b.op("div", probs, b.op("sum", probs, to="total", dim=-1, keepdim=True), to="weights")
        slots = (
            b.op("matmul", weights, v, to="updates")
            if c.chance(0.6)
            else b.op("einsum", v, weights, to="updates", equation="bjd,bij->bid")
        )
    return [slots, *c.subset([weights], 0.3)]


_AXES = {"q": ("S", "D"), "k": ("T", "D"), "v": ("T", "V")}


def write_strided(b: Builder, c: Choices) -> list[str]:
    """q, k and v of [B, H, length, dim] as views: slices, steps, selected axes, expanded or overlapping strides.

    Or gathered: those of the highest ranks.
    """
    found = []
    common = c.draw({"": 4.0, "heads": 1.0, "length": 1.0, "every": 1.0, "select": 1.0, "windows": 1.0, "gather": 1.0})
    for name, (length, dim) in _AXES.items():
        how = common or c.pick(("heads", "length", "every", "select", "windows", "batch", "columns", "gather"))
        value = _view_of(b, c, name, how, Size.of(length), Size.of(dim))
        found.append(Head.of(value))
    return [attend(b, c, Heads(*found)).output]


def _view_of(b: Builder, c: Choices, name: str, how: str, length: Size, dim: Size) -> str:
    batch, heads = Size.of("B"), Size.of("H")
    values = draw_values(c)
    if how == "heads":
        one = b.input(name, (batch, 1, length, dim), values)
        return b.op("expand", one, sizes=(batch, heads, length, dim))
    if how == "batch":
        one = b.input(name, (heads, length, dim), values)
        return b.op("expand", b.op("unsqueeze", one), sizes=(batch, heads, length, dim))
    if how == "length":
        start = c.pick((0, 1, 3))
        wide = b.input(name, (batch, heads, length + 4, dim), values, layout=draw_layout(c, 4))
        return b.op("narrow", wide, dim=2, start=start, stop=length + start)
    if how == "columns":
        wide = b.input(name, (batch, heads, length, dim * 3), values)
        before = dim * c.pick((0, 1, 2))
        return b.op("narrow", wide, start=before, stop=before + dim)
    if how == "every":
        wide = b.input(name, (batch, heads, length * 2, dim), values)
        return b.op("narrow", wide, dim=2, stop=length * 2, step=2)
    if how == "select":
        deep = b.input(name, (batch, heads, length, dim, 2), values)
        return b.op("select", deep, dim=-1, index=c.pick((0, 1)))
    if how == "gather":
        whole = b.input(name, (batch, heads, length * 2, dim), values)
        top = pick_top(b, c, draw_ranks(b, c, (batch, heads, length * 2)), length, "indices")
        return b.op(
            "gather", whole, b.op("expand", b.op("unsqueeze", top, dim=-1), sizes=shape_of(-1, -1, -1, dim)), dim=2
        )
    # Each position is a window over the next: neighbours share all but one of their elements.
    line = b.input(name, (batch, heads, length + dim - 1), values)
    return b.op("unfold", line, dim=2, size=dim)
