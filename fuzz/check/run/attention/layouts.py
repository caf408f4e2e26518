"""Packed and paged calls of attention functions, made from dense calls and read back (docs/kernels.md).

Each sequence of such a call is judged as a dense call of batch 1.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuzz.check.run.attention.call import Call
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import Sequences

_Piece = tuple[int, slice, slice]
"""A sequence: a row of the batch, and some of its queries and keys."""
_POISON = {"nan": math.nan, "finite": 1e4}
"""Unwritten numbers of a cache. 1e4 is finite in float16."""


@dataclass
class Layout:
    """A call in the layout that a function takes."""

    arguments: dict[str, Any]
    calls: list[Call]  # the dense calls that are judged in its place
    split: Callable[[str, Tensor], list[Tensor]] = lambda _name, value: [value]
    """Splits an argument ("k"), the result ("out"), or the gradient of either, into a part for each dense call."""
    join: Callable[[Tensor], Tensor] = lambda out: out  # builds the dense result, 0 for queries of no sequence
    sequences: Sequences | None = None  # None for a dense call

    def record(self, name: str, value: Tensor) -> None:
        """Hands each call its part of a result: out, dout, dq and so on."""
        for call, part in zip(self.calls, self.split(name.removeprefix("d"), value), strict=True):
            if name in ("out", "dout"):
                setattr(call, name, part)
            else:
                call.gradients[name] = part


def arrange(capabilities: Capabilities, *, cut: bool, **arguments: Any) -> Layout:
    """The call in the layout that the function takes. Raises `SubjectError` for calls that it can't express.

    cut: True cuts rows into sequences of random lengths, whose seed is the shapes, dtype and options of the call;
        False makes each row of the batch a sequence
    """
    layout, q, k = capabilities.layout, arguments["q"], arguments["k"]
    if layout == "dense":
        detached = {name: x.detach() if isinstance(x, Tensor) else x for name, x in arguments.items()}
        return Layout(arguments, [Call(detached.pop("q"), detached.pop("k"), detached.pop("v"), detached)])
    rows, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    other = (arguments.get("causal") == "top_left" and queries != keys) or (layout == "paged" and queries > keys)
    if not rows or (other and not cut):
        raise SubjectError(f"{rows} rows of {queries} queries and {keys} keys can't be expressed as a {layout} call")
    chance = Random(str([*q.shape, *k.shape, arguments["v"].shape[3], q.dtype, *arguments]))
    size = chance.choice(capabilities.block_sizes)
    pieces = [(row, slice(0, queries), slice(0, keys)) for row in range(rows)]
    pieces = list(_cut(pieces, capabilities, chance)) if cut else pieces
    packed = _pack(pieces, layout, size if layout == "paged" else 0, **arguments)
    if layout == "paged":
        _page(packed.arguments, size, _POISON[capabilities.poison], chance)
    return packed


def _cut(rows: list[_Piece], capabilities: Capabilities, chance: Random) -> Iterator[_Piece]:
    """The sequences of each row: the row, a shorter part, or several parts if there are few rows. Some may be empty.

    Paged sequences have no more queries than keys. Half of the paged calls have one query in each sequence.
    """
    paged, empty = capabilities.layout == "paged", capabilities.empty
    decode = paged and chance.random() < 1 / 2
    for row, queries, keys in rows:
        # Judging many sequences takes long.
        count = min(chance.randint(1, max(1, 4 - len(rows))), max(1, queries.stop), max(1, keys.stop))
        cuts, key_cuts = (_draw_cuts(part.stop, count, chance, empty=empty) for part in (queries, keys))
        if not capabilities.lengths or (empty and chance.random() < 1 / 2):
            key_cuts = [cut * keys.stop // max(1, queries.stop) for cut in cuts]
        for (first, last), (start, end) in zip(pairwise(cuts), pairwise(key_cuts), strict=True):
            most = min(last - first, end - start, 1 if decode else end) if paged else last - first
            yield row, slice(first, first + most), slice(start, end)


def _draw_cuts(size: int, count: int, chance: Random, *, empty: bool) -> list[int]:
    last = chance.choice((size, chance.randint(1, size))) if count == 1 and size else size
    if empty:
        return [0, *sorted(chance.choice((0, size, chance.randint(0, size))) for _ in range(count - 1)), last]
    return [0, *sorted(chance.sample(range(1, size), count - 1)), last]


def _pack(
    pieces: list[_Piece], layout: str, block_size: int, *, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> Layout:
    """Packs sequences along one axis, without a batch axis. Gradients of options are not judged."""

    def split(name: str, value: Tensor) -> list[Tensor]:
        return [part.transpose(0, 1)[None] for part in value.split(queries if name in ("q", "out") else keys)]

    def join(out: Tensor) -> Tensor:
        dense = out.new_zeros(*q.shape[:3], v.shape[3])
        for (row, part, _), value in zip(pieces, split("out", out), strict=True):
            dense[row, :, part] = value[0]
        return dense

    queries, keys = ([part.stop - part.start for part in parts] for parts in list(zip(*pieces, strict=True))[1:])
    options = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
    options |= {"causal": "bottom_right"} if options.get("causal") else {}
    packed = {
        name: torch.cat([x[piece[0], :, piece[axis]].transpose(0, 1) for piece in pieces])
        for name, x, axis in (("q", q, 1), ("k", k, 2), ("v", v, 2))
    }
    arguments = packed | options | {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys)}
    for name, lengths in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys)):
        arguments[name] = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=q.device)
    sequences = Sequences(layout, tuple(queries), tuple(keys), block_size)
    parts = [split(name, value.detach()) for name, value in packed.items()]
    calls = [Call(q, k, v, options) for q, k, v in zip(*parts, strict=True)]
    for number, call in enumerate(calls):
        call.sequences = replace(sequences, number=number)
    return Layout(arguments, calls, split, join, sequences)


def _page(arguments: dict[str, Any], size: int, poison: float, chance: Random) -> None:
    """Moves keys and values to blocks of `size` in random order; `poison` fills unwritten places."""
    used = arguments.pop("cu_seqlens_k").diff()
    counts = [math.ceil(keys / size) for keys in used.tolist()]
    counts.append(max(counts) + 1)
    order = torch.tensor(chance.sample(range(sum(counts)), sum(counts)), dtype=torch.int32, device=used.device)
    blocks, places = order.split(counts), torch.arange(size, device=used.device)
    slots = [(row[:, None] * size + places).flatten()[:keys] for row, keys in zip(blocks, used, strict=False)]
    for name in ("k", "v"):
        value = arguments[name]
        cache = value.new_full((len(order) * size, *value.shape[1:]), poison)
        cache[torch.cat(slots)] = value
        arguments[name] = cache.unflatten(0, (-1, size))
    table = pad_sequence(list(blocks), batch_first=True, padding_value=int(order[-1]))
    arguments |= {"seqused_k": used, "block_table": table[:-1].contiguous()}
