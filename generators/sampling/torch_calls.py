"""Writers of torch's own attention: scaled_dot_product_attention, flex_attention, and the layers of torch.nn."""

from generators.program.case import Attr, Values
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout, draw_values

_LEAST_HEAD_DIM = 16
"""Compiled flex_attention takes no smaller ones on CUDA."""


def write_flex(b: Builder, c: Choices) -> list[str]:
    """flex_attention with modifications of scores and masks."""
    if b.device == "cpu":
        b.mode = "inference"  # It knows no gradients there.
    else:
        b.dims.update({name: max(b.dims[name], _LEAST_HEAD_DIM) for name in "DV"})
    grouped = c.chance(0.25)
    score = c.draw({"none": 3.0, "causal": 2.0, "alibi": 2.0, "relative": 2.0, "softcap": 2.0})
    mask = c.draw({"none": 4.0, "causal": 3.0, "window": 2.0, "document": 2.0})
    if mask == "document":
        b.dims["T"] = b.dims["S"]
    values = draw_values(c)
    heads, kv_heads = ("G*R", "G") if grouped else ("H", "H")
    q = b.input("q", ("B", heads, "S", "D"), values)
    k = b.input("k", ("B", kv_heads, "T", "D"), values)
    v = b.input("v", ("B", kv_heads, "T", "V"), values)
    given = []
    if score == "alibi":
        given.append(b.input("slopes", (heads,), Values("uniform"), "float32", parameter=c.chance(0.5)))
    if score == "relative":
        given.append(b.input("table", (heads, "S + T - 1"), parameter=c.chance(0.5)))
    if mask == "document":
        given.append(b.input("documents", ("B", "S"), Values("small_counts"), "int64"))
    numbers = {"cap": c.pick((1.0, 5.0, 20.0)), "window": c.pick((0, 1, 3, 16))}
    scale = c.draw({None: 4.0, 1.0: 1.0, 0.3: 1.0})
    if b.device != "cpu" and mask != "none":
        numbers["block"] = c.draw({128: 3.0, 256: 1.0, 512: 1.0})
    options: dict[str, Attr] = {"score": score, "mask": mask, "enable_gqa": grouped, "scale": scale}
    return [b.op("flex_attention", q, k, v, *given, to="out", **options, **numbers)]


_DENSE = ("contiguous", "heads_inner")
"""Layouts in which features lie side by side, as the fused kernels need them."""
_EMBED = Size.parse("H*D")
_MOST_FEATURES = 128
_MASKS = {"none": 6.0, "attn_mask": 3.0, "key_padding_mask": 4.0, "attn_mask+key_padding_mask": 1.0}


def write_multihead_attention(b: Builder, c: Choices) -> list[str]:
    """nn.MultiheadAttention: self and cross attention, every mask and flag, fast path on and off."""
    attrs = _draw_attributes(b, c)
    batched, own = c.chance(0.9), c.chance(0.65)
    query = _draw_rows(b, c, "x", "S", _EMBED, attrs, batched=batched)
    key = value = query
    if not own:
        width = Size.of("V") if c.chance(0.3) else _EMBED
        key = _draw_rows(b, c, "memory", "T", width, attrs, batched=batched)
        value = _draw_rows(b, c, "values", "T", _EMBED, attrs, batched=batched) if c.chance(0.3) else key
    masks = c.choose("layer.masks", _MASKS)
    causal = own and not masks.startswith("attn_mask") and c.chance(0.25)
    given = _draw_masks(b, c, masks, "S" if own else "T", batched=batched, causal=causal)
    attrs |= {
        "causal": causal,
        "masks": masks,
        "need_weights": c.chance(0.5),
        "average_attn_weights": c.chance(0.6),
        "add_bias_kv": c.chance(0.04),
        "add_zero_attn": c.chance(0.04),
    }
    output = b.op("multihead_attention", query, key, value, *given, to="attention", **attrs)
    if attrs["need_weights"] and c.chance(0.4):
        return [output, b.op("multihead_attention", query, key, value, *given, to="weights", **attrs, gives="weights")]
    if c.chance(0.3):
        output = b.op("add", query, output, to="out")
    return [output]


def write_transformer_layers(b: Builder, c: Choices) -> list[str]:
    """nn.TransformerEncoderLayer, one or two: masks, norms, fast path on and off."""
    attrs = _draw_attributes(b, c)
    b.dims["M"] = c.pick((1, 8, 16, 64))
    attrs |= {"feedforward": "M", "activation": c.pick(("relu", "gelu")), "norm_first": c.chance(0.4)}
    batched, kind = c.chance(0.9), "transformer_encoder_layer"
    x = _draw_rows(b, c, "x", "S", _EMBED, attrs, batched=batched)
    for _ in range(c.draw({1: 3.0, 2: 1.0})):
        masks = "none" if c.chance(0.4) else c.pick(OPS[kind].attributes["masks"].words)
        causal = "src_mask" not in masks.split("+") and c.chance(0.3)
        given = _draw_masks(b, c, masks, "S", batched=batched, causal=causal)
        x = b.op(kind, x, *given, to="layer", **attrs, masks=masks, causal=causal)
    return [x]


def _draw_attributes(b: Builder, c: Choices) -> dict[str, Attr]:
    """The attributes that all of these layers have. Reduces sizes to those of a small layer."""
    if b.dims["H"] * b.dims["D"] > _MOST_FEATURES:
        b.dims["D"] = 8
    if b.dims["H"] % 2 and c.chance(0.7):
        # The fast path takes even numbers of heads.
        b.dims["H"] = 2
    return {
        "heads": "H",
        "batch_first": c.chance(0.75),
        "bias": c.chance(0.85),
        "dtype": b.dtype,
        "fast_path": c.chance(0.7),
        "seed": c.below(100),
        "dropout": c.draw({0.0: 6.0, 0.1: 2.0, 0.5: 1.0}),
    }


def _draw_rows(
    b: Builder, c: Choices, name: str, length: str, width: Size, attrs: dict[str, Attr], *, batched: bool
) -> str:
    """Tokens as the layer reads them, [batch, length, width], or with length first, or without batch."""
    shape: tuple[Size | str, ...] = (length, width)
    if batched:
        shape = ("B", length, width) if attrs["batch_first"] else (length, "B", width)
    return b.input(name, shape, draw_values(c), layout=draw_layout(c, len(shape)))


def _draw_masks(b: Builder, c: Choices, masks: str, key: str, *, batched: bool, causal: bool) -> list[str]:
    """The masks of these names, which `+` joins, over keys of that length.

    All boolean (True hides a key) or all added, as the mask of `causal` is: torch deprecates mixtures.
    """
    added = causal or c.chance(0.3)
    return [
        (_draw_padding_mask if name.endswith("key_padding_mask") else _draw_attn_mask)(
            b, c, key, added=added, batched=batched
        )
        for name in masks.split("+")
        if name != "none"
    ]


def _draw_padding_mask(b: Builder, c: Choices, key: str, *, added: bool, batched: bool) -> str:
    shape: tuple[Size | str, ...] = ("B", key) if batched else (key,)
    if added:
        return b.freeze(c, b.input("padding", shape, Values("padding_mask", scale=c.pick((float("-inf"), -1e4)))))
    keep = b.input("keep", shape, Values(c.draw({"padding": 8.0, "random": 1.0, "ones": 1.0}), scale=0.7), "bool")
    return b.op("logical_not", keep, to="drop")


def _draw_attn_mask(b: Builder, c: Choices, key: str, *, added: bool, batched: bool) -> str:
    shape: tuple[Size | str, ...] = ("S", key)
    if c.chance(0.3):
        shape = (Size.parse("B*H") if batched else Size.of("H"), "S", key)
    if added:
        values = Values("causal_mask", scale=float("-inf")) if c.chance(0.4) else Values("normal")
        return b.freeze(c, b.input("bias", shape, values))
    if c.chance(0.6):
        ones = b.op("ones", to="ones", sizes=tuple(Size.of(s) for s in shape), dtype="bool")
        return b.op("triu", ones, to="drop", diagonal=1)
    return b.input("drop", shape, Values("random", scale=0.3), "bool")
