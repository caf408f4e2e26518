"""Whoever calls nn.MultiheadAttention: self and cross attention, every mask and flag, fast path on and off."""

from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.layer_inputs import EMBED, draw_masks, layer_attributes, rows

_MASKS = {"none": 6.0, "attn_mask": 3.0, "key_padding_mask": 4.0, "attn_mask+key_padding_mask": 1.0}


def _write(b: Builder, c: Choices) -> list[str]:
    attrs = layer_attributes(b, c, "any")
    batched, own = c.chance(0.9), c.chance(0.65)
    query = rows(b, c, "x", "S", EMBED, attrs, batched=batched)
    key = value = query
    if not own:
        width = Size.of("V") if c.chance(0.3) else EMBED
        key = rows(b, c, "memory", "T", width, attrs, batched=batched)
        value = rows(b, c, "values", "T", EMBED, attrs, batched=batched) if c.chance(0.3) else key
    masks = c.structure("layer.masks", _MASKS)
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


FAMILY = Family(weight=2.5, write=_write)
