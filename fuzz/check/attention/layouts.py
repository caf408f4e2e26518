"""Packed and paged calls of attention functions, made from dense ones and read back (docs/kernels.md).

Every sequence of such a call is judged as a dense call of batch 1.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuzz.check.attention.function import Capabilities
from fuzz.check.exceptions import Unsupported
from fuzz.check.oracle.attention.call import Call
from fuzz.protocol.failures import Sequences

_MEANINGLESS = ("mask", "bias", "dropout")
"""Options without a meaning where sequences have no common axes."""
_FINITE = 1e4
"""Unwritten numbers of a cache that is not poisoned with NaN: large, and finite in float16."""
_WHOLE, _EMPTY, _DECODE = 1 / 4, 1 / 2, 1 / 2
"""Shares of calls that cut no row, of others that have empty sequences, and of paged ones that have single queries."""


class _Piece(NamedTuple):
    """A sequence: some queries and keys of a row of the batch."""

    row: int
    queries: slice
    keys: slice


class Dense:
    """A call as the case makes it. `arguments`: of the function; `calls`: what they are judged as, without results;
    `differentiated`: the arguments whose gradients are judged."""

    differentiated: tuple[str, ...] = ("q", "k", "v", "bias", "sinks")
    sequences: Sequences | None = None

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> None:
        self.arguments = {"q": q, "k": k, "v": v, **options}
        detached = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
        self.calls = [Call(q.detach(), k.detach(), v.detach(), detached)]

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
    """Sequences one after the other, without a batch axis: q [total_q, heads, head_dim]."""

    differentiated = ("q", "k", "v")
    layout = "packed"
    block_size = 0

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], pieces: list[_Piece]) -> None:
        self._shape, self._pieces = (*q.shape[:3], v.shape[3]), pieces
        self._queries = [piece.queries.stop - piece.queries.start for piece in pieces]
        self._keys = [piece.keys.stop - piece.keys.start for piece in pieces]
        self.arguments = {
            "q": _pack(q, [(piece.row, piece.queries) for piece in pieces]),
            "k": _pack(k, [(piece.row, piece.keys) for piece in pieces]),
            "v": _pack(v, [(piece.row, piece.keys) for piece in pieces]),
        }
        parts = [self.split(name, value.detach()) for name, value in self.arguments.items()]
        options = options | {"causal": "bottom_right"} if options.get("causal") else options
        detached = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
        self.calls = [Call(one_q, one_k, one_v, detached) for one_q, one_k, one_v in zip(*parts, strict=True)]
        self.sequences = Sequences(self.layout, tuple(self._queries), tuple(self._keys), block_size=self.block_size)
        for index, call in enumerate(self.calls):
            call.sequences = replace(self.sequences, index=index)
        integers = partial(torch.tensor, dtype=torch.int32, device=q.device)
        self.arguments |= detached | {
            "cu_seqlens_q": integers([0, *accumulate(self._queries)]),
            "cu_seqlens_k": integers([0, *accumulate(self._keys)]),
            "max_seqlen_q": max(self._queries),
            "max_seqlen_k": max(self._keys),
        }

    def split(self, name: str, value: Tensor) -> list[Tensor]:
        """Their parts, of batch 1."""
        parts = value.split(self._queries if name in ("q", "out") else self._keys)
        return [part.transpose(0, 1)[None] for part in parts]

    def join(self, out: Tensor) -> Tensor:
        """The dense result."""
        dense = out.new_zeros(self._shape)
        for piece, part in zip(self._pieces, self.split("out", out), strict=True):
            dense[piece.row, :, piece.queries] = part[0]
        return dense


class Paged(Packed):
    """Packed queries, with keys and values in blocks of a cache, in random order.

    k [blocks, block_size, kv_heads, head_dim]. Blocks without a sequence, and the rest of its last one, are poisoned.
    """

    layout = "paged"

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: dict[str, Any],
        pieces: list[_Piece],
        *,
        block_size: int,
        poison: float,
        chance: Random,
    ) -> None:
        self.block_size = block_size
        super().__init__(q, k, v, options, pieces)
        del self.arguments["cu_seqlens_k"]
        counts = [math.ceil(keys / block_size) for keys in self._keys]
        order = list(range(sum(counts) + 2))
        chance.shuffle(order)
        unwritten, blocks = order.pop(), iter(order)
        table = torch.full((len(pieces), max(counts) + 1), unwritten, dtype=torch.int32)
        caches = {name: self.arguments[name] for name in ("k", "v")}
        caches = {name: x.new_full((len(order) + 1, block_size, *x.shape[1:]), poison) for name, x in caches.items()}
        starts = [0, *accumulate(self._keys)]
        for row, (count, start, end) in enumerate(zip(counts, starts, starts[1:], strict=False)):
            for column in range(count):
                block = next(blocks)
                table[row, column] = block
                first = start + column * block_size
                last = min(first + block_size, end)
                for name, cache in caches.items():
                    cache[block, : last - first] = self.arguments[name][first:last]
        used = torch.tensor(self._keys, dtype=torch.int32, device=q.device)
        self.arguments |= caches | {"seqused_k": used, "block_table": table.to(q.device)}


def arrange(
    capabilities: Capabilities, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], *, cut: bool
) -> Dense:
    """The call in the layout that the function takes. `cut`: into sequences of lengths that its shapes decide, else
    each row of the batch is one. Raises `Unsupported` for options that the layout lacks."""
    if capabilities.layout == "dense":
        return Dense(q, k, v, options)
    for name in (name for name in _MEANINGLESS if options.get(name) is not None):
        raise Unsupported(f"{capabilities.layout} calls have no {name}")
    if not q.shape[0]:
        raise Unsupported(f"{capabilities.layout} calls need a sequence")
    paged = capabilities.layout == "paged"
    if not cut and (
        (options.get("causal") == "top_left" and q.shape[2] != k.shape[2]) or (paged and q.shape[2] > k.shape[2])
    ):
        raise Unsupported(
            f"{capabilities.layout} calls of {q.shape[2]} queries and {k.shape[2]} keys have another meaning"
        )
    chance = Random(str([*q.shape, *k.shape, v.shape[3], q.dtype, *options]))
    pieces = [_Piece(row, slice(0, q.shape[2]), slice(0, k.shape[2])) for row in range(q.shape[0])]
    if cut:
        pieces = list(_cut(pieces, capabilities, chance))
    if not paged:
        return Packed(q, k, v, options, pieces)
    size, poison = chance.choice(capabilities.block_sizes), math.nan if capabilities.poison == "nan" else _FINITE
    return Paged(q, k, v, options, pieces, block_size=size, poison=poison, chance=chance)


def _cut(rows: list[_Piece], capabilities: Capabilities, chance: Random) -> Iterable[_Piece]:
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


def _pack(value: Tensor, parts: list[tuple[int, slice]]) -> Tensor:
    return torch.cat([value[row, :, part].transpose(0, 1) for row, part in parts])
