"""Writers of nn.MultiheadAttention, nn.TransformerEncoderLayer and nn.TransformerDecoderLayer."""

from generators.program.case import Attr
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.layer_inputs import EMBED, draw_masks, layer_attributes, rows

_MASKS = {"none": 6.0, "attn_mask": 3.0, "key_padding_mask": 4.0, "attn_mask+key_padding_mask": 1.0}


def write_multihead_attention(b: Builder, c: Choices) -> list[str]:
    """nn.MultiheadAttention: self and cross attention, every mask and flag, fast path on and off."""
    attrs = layer_attributes(b, c, "any")
    batched, own = c.chance(0.9), c.chance(0.65)
    query = rows(b, c, "x", "S", EMBED, attrs, batched=batched)
    key = value = query
    if not own:
        width = Size.of("V") if c.chance(0.3) else EMBED
        key = rows(b, c, "memory", "T", width, attrs, batched=batched)
        value = rows(b, c, "values", "T", EMBED, attrs, batched=batched) if c.chance(0.3) else key
    masks = c.choose("layer.masks", _MASKS)
    causal = own and not masks.startswith("attn_mask") and c.chance(0.25)
    given = draw_masks(b, c, masks, "S" if own else "T", batched=batched, causal=causal)
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
    """nn.TransformerEncoderLayer and nn.TransformerDecoderLayer: masks, norms, fast path on and off."""
    attrs = layer_attributes(b, c, "any")
    b.dims["M"] = c.pick((1, 8, 16, 64))
    attrs |= {"feedforward": "M", "activation": c.pick(("relu", "gelu")), "norm_first": c.chance(0.4)}
    batched = c.chance(0.9)
    x = rows(b, c, "x", "S", EMBED, attrs, batched=batched)
    if c.chance(0.6):
        for _ in range(c.weighted({1: 3.0, 2: 1.0})):
            x = _layer(b, c, "transformer_encoder_layer", (x,), attrs, batched=batched)
        return [x]
    memory = rows(b, c, "memory", "T", EMBED, attrs, batched=batched)
    return [_layer(b, c, "transformer_decoder_layer", (x, memory), attrs, batched=batched)]


def _layer(b: Builder, c: Choices, kind: str, args: tuple[str, ...], attrs: dict[str, Attr], *, batched: bool) -> str:
    masks = "none" if c.chance(0.4) else c.pick(OPS[kind].attributes["masks"].words)
    own = "src_mask" if len(args) == 1 else "tgt_mask"
    causal = own not in masks.split("+") and c.chance(0.3)
    given = draw_masks(b, c, masks, "T", batched=batched, causal=causal)
    return b.op(kind, *args, *given, to="layer", **attrs, masks=masks, causal=causal)
