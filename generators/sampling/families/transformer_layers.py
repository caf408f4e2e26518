"""Whoever stacks nn.TransformerEncoderLayer and nn.TransformerDecoderLayer: masks, norms, fast path on and off."""

from generators.program.case import Attr
from generators.program.ops import OPS
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.layer_inputs import EMBED, draw_masks, layer_attributes, rows


def _write(b: Builder, c: Choices) -> list[str]:
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


FAMILY = Family(weight=2.0, write=_write)
