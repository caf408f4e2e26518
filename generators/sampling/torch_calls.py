"""Writers of torch's own attention: scaled_dot_product_attention, flex_attention, and the layers of torch.nn."""

from generators.program.case import Attr, Values
from generators.program.ops import OPS
from generators.program.sizes import Size, shape_of
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout, draw_values

_LEAST_HEAD_DIM = 16
"""Compiled flex_attention takes no smaller head_dim on CUDA."""


def write_flex(b: Builder, c: Choices) -> list[str]:
    """flex_attention with modifications of scores and masks."""
    b.mode = "inference"
    if b.device != "cpu":
        b.dims.update({name: max(b.dims[name], _LEAST_HEAD_DIM) for name in "DV"})
    grouped = c.chance(0.25)
    score = c.draw({"none": 3.0, "causal": 2.0, "alibi": 2.0, "relative": 2.0, "softcap": 2.0})
    mask = c.draw({"none": 4.0, "causal": 3.0, "window": 2.0})
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
    numbers = {"cap": c.pick((1.0, 5.0, 20.0)), "window": c.pick((0, 1, 3, 16))}
    scale = c.draw({None: 4.0, 1.0: 1.0, 0.3: 1.0})
    if b.device != "cpu" and mask != "none":
        numbers["block"] = c.draw({128: 3.0, 256: 1.0, 512: 1.0})
    options: dict[str, Attr] = {"score": score, "mask": mask, "enable_gqa": grouped, "scale": scale}
    return [b.op("flex_attention", q, k, v, *given, to="out", **options, **numbers)]


_EMBED = Size.parse("H*D")
_MOST_FEATURES = 128
_MASKS = {"none": 6.0, "attn_mask": 3.0, "key_padding_mask": 4.0, "attn_mask+key_padding_mask": 1.0}


def write_multihead_attention(b: Builder, c: Choices) -> list[str]:
    """nn.MultiheadAttention: self and cross attention, every mask and flag, fast path on and off."""
    attrs = _draw_attributes(b, c)
    own = c.chance(0.65)
    query = _draw_rows(b, c, "x", "S", attrs)
    key = value = query if own else _draw_rows(b, c, "memory", "T", attrs)
    if not own and c.chance(0.3):
        value = _draw_rows(b, c, "values", "T", attrs)
    masks = c.choose("layer.masks", _MASKS)
    causal = own and not masks.startswith("attn_mask") and c.chance(0.25)
    given = _draw_masks(b, c, masks, "S" if own else "T", causal=causal)
    attrs |= {"causal": causal, "masks": masks, "need_weights": c.chance(0.5)}
    output = b.op("multihead_attention", query, key, value, *given, to="attention", **attrs)
    return [b.op("add", query, output, to="out") if c.chance(0.3) else output]


def write_transformer_layers(b: Builder, c: Choices) -> list[str]:
    """nn.TransformerEncoderLayer, one or two: masks, norms, fast path on and off."""
    attrs = _draw_attributes(b, c)
    b.dims["M"] = c.pick((1, 8, 16, 64))
    attrs |= {"feedforward": "M", "activation": c.pick(("relu", "gelu")), "norm_first": c.chance(0.4)}
    kind = "transformer_encoder_layer"
    x = _draw_rows(b, c, "x", "S", attrs)
    for _ in range(c.draw({1: 3.0, 2: 1.0})):
        masks = "none" if c.chance(0.4) else c.pick(OPS[kind].attributes["masks"].words)
        causal = "src_mask" not in masks.split("+") and c.chance(0.3)
        given = _draw_masks(b, c, masks, "S", causal=causal)
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


def _draw_rows(b: Builder, c: Choices, name: str, length: str, attrs: dict[str, Attr]) -> str:
    """Tokens as the layer reads them, [batch, length, width], or with length first."""
    shape = ("B", length, _EMBED) if attrs["batch_first"] else (length, "B", _EMBED)
    return b.input(name, shape, draw_values(c), layout=draw_layout(c, 3))


def _draw_masks(b: Builder, c: Choices, masks: str, key: str, *, causal: bool) -> list[str]:
    """The masks of these names, which `+` joins, over keys of that length.

    All boolean (True hides a key) or all added, as the mask of `causal` is: torch deprecates mixtures.
    """
    added = causal or c.chance(0.3)
    return [_draw_mask(b, c, key, added=added, pads="padding" in name) for name in masks.split("+") if name != "none"]


def _draw_mask(b: Builder, c: Choices, key: str, *, added: bool, pads: bool) -> str:
    shape = ("B", key) if pads else ("B*H", "S", key) if c.chance(0.3) else ("S", key)
    if added:
        values = Values("padding_mask", scale=c.pick((float("-inf"), -1e4)))
        if not pads:
            values = Values("causal_mask", scale=float("-inf")) if c.chance(0.4) else Values("normal")
        return b.freeze(c, b.input("bias", shape, values))
    if pads:
        keep = b.input("keep", shape, Values(c.draw({"padding": 8.0, "random": 1.0, "ones": 1.0}), scale=0.7), "bool")
        return b.op("logical_not", keep, to="drop")
    if c.chance(0.6):
        return b.op("triu", b.op("ones", to="ones", sizes=shape_of(*shape), dtype="bool"), to="drop", diagonal=1)
    return b.input("drop", shape, Values("random", scale=0.3), "bool")
