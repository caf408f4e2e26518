"""Slot attention: slots compete for each place (softmax over slots), then each slot's weights are made to sum to 1."""

from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values
from generators.sampling.layers import bounded, layer_norm, linear


def write(b: Builder, c: Choices) -> list[str]:
    """One or two rounds of S slots over T places."""
    length = b.dims["T"]
    head_dim = bounded(b)
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


FAMILY = Family(weight=2.0, write=write)
