"""Linear attention: elu + 1 of q and k, keys times values first, no softmax."""

from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.families.family import Family
from generators.sampling.heads import draw_values, permuted
from generators.sampling.merge_heads import merge_heads


def write(b: Builder, c: Choices) -> list[str]:
    """The attention alone: q (k' v) divided by q (the sum of k)."""
    order = c.pick(("bhsd", "bshd"))
    shapes = {"q": "BHSD", "k": "BHTD", "v": "BHTV"}
    q, k, v = (
        permuted(
            b, c, b.input(name, [shape["bhsd".index(axis)] for axis in order], draw_values(c)), order, "bhsd", name
        )
        for name, shape in shapes.items()
    )
    feature = c.pick(("elu", "elu", "relu", "softplus"))
    q, k = (b.op("add", b.op(feature, value), other=1.0) for value in (q, k))
    kt = b.op("transpose", k, to="kt")
    if c.chance(0.3):
        # The order of softmax attention, normalised afterwards.
        weights = b.op("matmul", q, kt, to="weights")
        total = b.op("sum", weights, to="total", dim=-1, keepdim=True)
        out = b.op("matmul", b.op("div", weights, total), v, to="out")
    else:
        kv = b.op("matmul", kt, v, to="kv")
        total = b.op("matmul", q, b.op("sum", kt, to="total", dim=-1, keepdim=True), to="total")
        out = b.op("div", b.op("matmul", q, kv, to="out"), b.op("add", total, other=1e-6) if c.chance(0.5) else total)
    return [merge_heads(b, c, out) if c.chance(0.4) else out]


FAMILY = Family(weight=1.5, write=write)
