"""Heads put side by side again after attention."""

from dataclasses import replace

from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import Heads, permute_axes
from generators.sampling.layers import linear


def merge_heads(b: Builder, c: Choices, value: str) -> str:
    """[B, H, S, D] as [B, S, H * D]; a value without a head axis as it is."""
    if b.rank(value) == 3:
        return value
    batch, heads, seq_len, head_dim = b.shape(value)
    if b.size(heads) == 1 and c.chance(0.4):
        return b.op("squeeze", value, dim=1)
    moved = b.op("transpose", value, dim0=1, dim1=2) if c.chance(0.7) else b.op("permute", value, dims=(0, 2, 1, 3))
    form = c.weighted({"reshape": 5.0, "contiguous": 3.0, "flatten": 2.0})
    if form == "flatten":
        return b.op("flatten", moved, start=2, end=3)
    if form == "contiguous":
        moved = b.op("contiguous", moved)
    last = Size.of(-1) if c.chance(0.2) else heads * head_dim
    return b.op("view" if form == "contiguous" else "reshape", moved, sizes=(batch, seq_len, last))


def project_output(b: Builder, c: Choices, value: str, hint: str, embed: Size, *, bias: bool) -> str:
    """[B, H, S, D] merged and through a linear layer, as [B, S, embed]."""
    return linear(b, c, merge_heads(b, c, value), hint, embed, bias=bias)


def restore_axes(b: Builder, c: Choices, heads: Heads, output: str) -> str:
    """The output with axes [B, S, H, D], where q, k and v came so and there is a contract to adapt."""
    at = next((i for i, contract in enumerate(b.contracts) if contract.output == output), None)
    if at is None or any(head.order != "bshd" or b.rank(head.source) != 4 for head in (heads.q, heads.k, heads.v)):
        return output
    moved = permute_axes(b, c, output, "bhsd", "bshd", "out")
    b.contracts[at] = replace(
        b.contracts[at], q=heads.q.source, k=heads.k.source, v=heads.v.source, output=moved, layout="bshd"
    )
    return moved
