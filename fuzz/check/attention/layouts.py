"""Packed and paged calls of attention functions, made from dense ones and read back (docs/kernels.md).

Every sequence of such a call is judged as a dense call of batch 1.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuzz.check.exceptions import Unsupported
from fuzz.check.oracle.attention.call import Call
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Sequences


class _Piece(NamedTuple):
    """A sequence: some queries and keys of a row of the batch."""

    row: int
    queries: slice
    keys: slice


_POISON = {"nan": math.nan, "finite": 1e4}
"""Unwritten numbers of a cache: the second is large, and finite in float16."""
_WHOLE, _EMPTY, _DECODE = 1 / 4, 1 / 2, 1 / 2
"""Shares of calls that cut no row, of others that have empty sequences, and of paged ones that have single queries."""


class Dense:
    """A call as the case makes it. `arguments`: of the function; `calls`: what they are judged as."""

    sequences: Sequences | None = None

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> None:
        self.arguments = {"q": q, "k": k, "v": v, **options}
        self.calls = [Call(q.detach(), k.detach(), v.detach(), _detach(options))]

    def record(self, name: str, value: Tensor) -> None:
        """Give every call its part of a result: out, dout, dq and so on."""
        for call, part in zip(self.calls, self.split(name.removeprefix("d"), value), strict=True):
            if name in ("out", "dout"):
                setattr(call, name, part)
            else:
                call.gradients[name] = part

    def split(self, _name: str, value: Tensor) -> list[Tensor]:
        """The part of every call in an argument ("k"), the result ("out") or the gradient of one."""
        return [value]

    def join(self, out: Tensor) -> Tensor:
        """The result [batch, heads, seq_len, value_dim] from that of the function; 0 without a query."""
        return out


class Packed(Dense):
    """Sequences one after the other, without a batch axis. Gradients of options are not judged."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], pieces: list[_Piece], layout: str
    ) -> None:
        self._shape, self._pieces = (*q.shape[:3], v.shape[3]), pieces
        queries = [piece.queries.stop - piece.queries.start for piece in pieces]
        keys = [piece.keys.stop - piece.keys.start for piece in pieces]
        self._lengths = {"q": queries, "out": queries, "k": keys, "v": keys}
        self.sequences = Sequences(layout, tuple(queries), tuple(keys))
        options = _detach(options) | ({"causal": "bottom_right"} if options.get("causal") else {})
        packed = {
            name: torch.cat([x[piece.row, :, piece[axis]].transpose(0, 1) for piece in pieces])
            for name, x, axis in (("q", q, 1), ("k", k, 2), ("v", v, 2))
        }
        parts = [self.split(name, value.detach()) for name, value in packed.items()]
        self.calls = [Call(each_q, each_k, each_v, options) for each_q, each_k, each_v in zip(*parts, strict=True)]
        for index, call in enumerate(self.calls):
            call.sequences = replace(self.sequences, index=index)
        self.arguments = packed | options | {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys)}
        for name, lengths in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys)):
            self.arguments[name] = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=q.device)

    def page(self, size: int, poison: float, chance: Random) -> None:
        """Move keys and values to blocks of `size`, in random order; `poison` fills what no key is written to."""
        used = self.arguments.pop("cu_seqlens_k").diff()
        counts = [math.ceil(keys / size) for keys in self._lengths["k"]]
        counts.append(max(counts) + 1)
        order = torch.tensor(chance.sample(range(sum(counts)), sum(counts)), dtype=torch.int32, device=used.device)
        blocks, places = order.split(counts), torch.arange(size, device=used.device)
        slots = [(row[:, None] * size + places).flatten()[:keys] for row, keys in zip(blocks, used, strict=False)]
        for name in ("k", "v"):
            value = self.arguments[name]
            cache = value.new_full((len(order) * size, *value.shape[1:]), poison)
            cache[torch.cat(slots)] = value
            self.arguments[name] = cache.unflatten(0, (-1, size))
        table = pad_sequence(list(blocks), batch_first=True, padding_value=int(order[-1]))
        self.arguments |= {"seqused_k": used, "block_table": table[:-1].contiguous()}

    def split(self, name: str, value: Tensor) -> list[Tensor]:
        """Their parts, of batch 1."""
        return [part.transpose(0, 1)[None] for part in value.split(self._lengths[name])]

    def join(self, out: Tensor) -> Tensor:
        """The dense result."""
        dense = out.new_zeros(self._shape)
        for piece, part in zip(self._pieces, self.split("out", out), strict=True):
            dense[piece.row, :, piece.queries] = part[0]
        return dense


def arrange(
    capabilities: Capabilities, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], *, cut: bool
) -> Dense:
    """The call in the layout that the function takes. `cut`: into sequences of lengths that its shapes decide, else
    each row of the batch is one. Raises `Unsupported` for calls that the layout lacks."""
    layout, (rows, _, queries, _), keys = capabilities.layout, q.shape, k.shape[2]
    if layout == "dense":
        return Dense(q, k, v, options)
    other = (options.get("causal") == "top_left" and queries != keys) or (layout == "paged" and queries > keys)
    if not rows or (other and not cut):
        raise Unsupported(f"{layout} calls of {rows} rows, {queries} queries and {keys} keys do not mean the same")
    chance = Random(str([*q.shape, *k.shape, v.shape[3], q.dtype, *options]))
    pieces = [_Piece(row, slice(0, queries), slice(0, keys)) for row in range(rows)]
    pieces = list(_cut(pieces, capabilities, chance)) if cut else pieces
    if layout == "packed":
        return Packed(q, k, v, options, pieces, layout)
    block_size = chance.choice(capabilities.block_sizes)
    paged = Packed(q, k, v, options, pieces, f"{layout} by {block_size}")
    paged.page(block_size, _POISON[capabilities.poison], chance)
    return paged


def _cut(rows: list[_Piece], capabilities: Capabilities, chance: Random) -> Iterator[_Piece]:
    """Sequences from each row: all of it, a shorter one, or several where rows are few; in some calls one without
    queries and one without keys, which may be the same. Paged ones have no more queries than keys, and may have one."""
    paged, whole = capabilities.layout == "paged", chance.random() < _WHOLE
    decode = paged and chance.random() < _DECODE
    empty = chance.choice(rows).row if capabilities.empty and not whole and chance.random() < _EMPTY else None
    for row, queries, keys in rows:
        # Many sequences take long to judge.
        count = 1 if whole else min(chance.randint(1, max(1, 4 - len(rows))), max(1, queries.stop), max(1, keys.stop))
        cuts = _draw_cuts(queries.stop, count, chance, whole=whole)
        key_cuts = _draw_cuts(keys.stop, count, chance, whole=whole) if capabilities.lengths else cuts[:]
        if row == empty:
            place = chance.randint(0, count)
            cuts.insert(place, cuts[place])
            place = chance.choice((place, chance.randint(0, count))) if capabilities.lengths else place
            key_cuts.insert(place, key_cuts[place])
        for (first, last), (start, end) in zip(pairwise(cuts), pairwise(key_cuts), strict=True):
            most = min(last - first, end - start, 1 if decode else end) if paged else last - first
            yield _Piece(row, slice(first, first + most), slice(start, end))


def _draw_cuts(size: int, count: int, chance: Random, *, whole: bool) -> list[int]:
    """Where `count` sequences begin and end, none of them empty if `size` is not 0."""
    last = size if whole or count > 1 or not size else chance.randint(1, size)
    return [0, *sorted(chance.sample(range(1, size), count - 1)), last]


def _detach(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
