"""Heads put side by side again after attention."""

from generators.builder import Builder
from generators.choices import Choices
from generators.sizes import Size


def merge_heads(b: Builder, c: Choices, value: str) -> str:
    """[B, H, S, D] as [B, S, H * D]; a value without a head axis as it is."""
    if b.rank(value) == 3:
        return value
    batch, heads, seq_len, head_dim = b.shape(value)
    if b.size(heads) == 1 and c.chance(0.4):
        return b.op("squeeze", value, dim=1)
    if c.chance(0.7):
        moved = b.op("transpose", value, dim0=1, dim1=2)
    else:
        moved = b.op("permute", value, dims=(0, 2, 1, 3))
    form = c.weighted({"reshape": 5.0, "contiguous": 3.0, "flatten": 2.0})
    if form == "flatten":
        return b.op("flatten", moved, start=2, end=3)
    if form == "contiguous":
        moved = b.op("contiguous", moved)
    last = Size.of(-1) if c.chance(0.2) else heads * head_dim
    return b.op("view" if form == "contiguous" else "reshape", moved, sizes=(batch, seq_len, last))
