"""Hand-written sources in the form generators.emit prints: correct attention, and programs torch 2.13 compiles wrongly."""

_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

B, H, S, D = {dims}


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, *rest):
{body}


def inputs():
    q, k, v = (torch.randn({layout}, generator=rng(seed)).to(torch.{dtype}) for seed in range(3))
    return [q, k, v{extra}]
"""


def source(
    *body: str, dims: str = "2, 4, 17, 16", layout: str = "B, H, S, D", dtype: str = "float32", extra: str = ""
) -> str:
    """A module whose forward has the lines of `body`, with q, k, v of one shape and the expressions in `extra`."""
    lines = "\n".join(" " * 8 + line for line in body)
    return _HEAD.format(dims=dims, body=lines, layout=layout, dtype=dtype, extra=f", {extra}" if extra else "")


def plain(dtype: str = "float32", scale: str = "4.0") -> str:
    """Attention as everybody writes it."""
    return source(f"return (q @ k.transpose(-2, -1) / {scale}).softmax(dim=-1) @ v", dtype=dtype)


_PERMUTED = "q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)"
_KEY_MASK = "(torch.arange(S) % 3).repeat(B, 1)"

#: Programs eager runs and torch 2.13.0 compiles wrongly, by what is special about them.
WRONG = {
    # The serialized SFDP patterns don't compare integers, so `dim` of softmax is anything.
    "softmax over queries": source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-2) @ v"),
    "softmax over heads": source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=1) @ v"),
    "softmax over batch": source("return (q @ k.transpose(-2, -1) * 0.25).softmax(dim=0) @ v"),
    # ... nor permutations, which shows where sizes coincide.
    "another permutation": source(
        "q, k, v = q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)",
        "return (torch.matmul(q, k.transpose(-2, -1)) / 4.0).softmax(dim=-1) @ v",
        dims="4, 4, 4, 16",
        layout="B, S, H, D",
    ),
    "queries times heads": source(
        "q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 1, 2, 3), v.permute(0, 2, 1, 3)",
        "return (torch.matmul(q, k.transpose(-2, -1)) / 4.0).softmax(dim=-1) @ v",
        dims="2, 8, 8, 16",
        layout="B, S, H, D",
    ),
    "key transposed elsewhere": source(
        "return (q @ k.transpose(1, 2) / 4.0).softmax(dim=-1) @ v",
        dims="2, 16, 16, 16",
    ),
    "bmm of 3-D, softmax over queries": source(
        "return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(dim=1), v)", layout="B * H, S, D"
    ),
    # (mask == 0) becomes (mask == 1): every other number is masked too.
    "integer mask with other values": source(
        _PERMUTED,
        "scores = q @ k.transpose(-2, -1) / 4.0",
        "hidden = (rest[0] == 0).view(B, 1, 1, S).expand_as(scores)",
        "return scores.masked_fill(hidden, float('-inf')).softmax(dim=-1) @ v",
        layout="B, S, H, D",
        extra=_KEY_MASK,
    ),
    # A row of finfo.min is a mean of v; SDPA's boolean mask makes it 0.
    "where with an empty row": source(
        _PERMUTED,
        "scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / torch.full([], 4.0, dtype=q.dtype)",
        "scores = torch.where(rest[0], scores, torch.full((), torch.finfo(q.dtype).min, dtype=q.dtype))",
        "return scores.softmax(dim=-1).matmul(v), k, v",
        layout="B, S, H, D",
        extra="torch.ones(S, S).tril(-1).bool().view(1, 1, S, S)",
    ),
    # Adding True adds 1; SDPA reads a boolean mask as a choice.
    "boolean mask added": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v",
        extra="torch.ones(S, S).tril().bool()",
    ),
    "boolean mask added, permuted": source(
        _PERMUTED,
        "return ((torch.matmul(q, k.transpose(-2, -1)) / 4.0) + rest[0]).softmax(dim=-1).matmul(v)",
        layout="B, S, H, D",
        extra="torch.ones(S, S).tril().bool()",
    ),
    # SDPA doesn't broadcast every mask that `+` does.
    "mask of one dimension": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v", extra="torch.randn(S, generator=rng(3))"
    ),
    "mask of three dimensions": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v",
        extra="torch.randn(H, S, S, generator=rng(3))",
    ),
    "mask wider than the scores": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v",
        layout="1, H, S, D",
        extra="torch.randn(B, 1, S, S, generator=rng(3))",
    ),
    "mask of five dimensions": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v",
        extra="torch.randn(2, 1, 1, S, S, generator=rng(3))",
    ),
    "a column for a mask": source(
        "return ((q @ k.transpose(-2, -1) / 4.0) + rest[0]).softmax(dim=-1) @ v",
        extra="torch.randn(B, 1, S, 1, generator=rng(3))",
    ),
}
