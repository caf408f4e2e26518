"""Recognises which places a mask keeps: a pattern of `generators.program.kept_places`, by testing every element."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_LONG = 8
"""The fewest keys for which a run of keys, or a row without a key, is no coincidence: of 256 rows of 8 keys, 37 are a
run and one is empty."""


class Kept(NamedTuple):
    """A pattern, how complex it is, the share of kept places if it is random, and the parameter of its structure."""

    pattern: str
    cost: int = 0
    share: float = 1.0
    param: float = 0.0


class _Rule(NamedTuple):
    """A part of a pattern, and the places that it keeps."""

    name: str
    cost: int
    places: Tensor
    param: int = 0


def describe_kept(kept: Tensor) -> Kept:
    """The pattern of a boolean tensor that is true where a key is kept. The last axes are queries and keys."""
    if not kept.numel() or bool(kept.all()):
        return Kept("ones")
    if not bool(kept.any()):
        return Kept("zeros")
    if kept.dim() == 2 and kept.shape[0] != kept.shape[1]:
        # Rows of a batch, unless each keeps one key more.
        is_causal = len(kept) > 1 and torch.equal(kept, torch.ones_like(kept).tril())
        return Kept("causal", 1) if is_causal else _describe_rows(kept)
    if kept.dim() < 2 or kept.shape[1 if kept.dim() > 2 else 0 : -1].numel() == 1:
        return _describe_rows(kept)
    return _describe_items(kept) or _describe_rows(kept, 5 if kept.dim() > 2 else 0)


def _describe_items(kept: Tensor) -> Kept | None:
    """The simplest pattern of queries and keys that all heads share, with lengths for each index of the first axis."""
    queries, keys = kept.shape[-2:]
    heads = kept[None, None] if kept.dim() == 2 else kept.reshape(len(kept), -1, queries, keys)
    items = heads[:, 0]
    if not bool((heads == items[:, None]).all()):
        return None
    seen, seeing = items.any(1), items.any(2)
    widest = seen[:, None, :] & seeing[:, :, None]
    structures = [one for one in _list_structures(items, seeing) if torch.equal(one.places & widest, items)]
    if kept.dim() == 2:  # it may be rows of a batch
        structures = [one for one in structures if one.name]
    of_keys = [
        rule._replace(places=rule.places[:, None, :]) for rule in _list_rules(seen, "key_padding", "random_keys")
    ]
    of_queries = [
        rule._replace(places=rule.places[:, :, None]) for rule in _list_rules(seeing, "query_padding", "empty_rows")
    ]
    joined = sorted(itertools.product(structures, of_keys, of_queries), key=lambda rules: sum(r.cost for r in rules))
    for structure, key_rule, query_rule in joined:
        rules = [rule for rule in (structure, key_rule, query_rule) if rule.name]
        if _are_joined(structure.name, key_rule.name, query_rule.name) and torch.equal(
            structure.places & key_rule.places & query_rule.places, items
        ):
            share = _round(seen) if key_rule.name == "random_keys" else 1.0
            return Kept("+".join(r.name for r in rules), sum(r.cost for r in rules), share, float(structure.param))
    return None


def _are_joined(structure: str, of_keys: str, of_queries: str) -> bool:
    """Whether a pattern may join them, as in `generators.program.kept_places`."""
    if "documents" in structure and (of_queries or of_keys == "random_keys"):
        return False
    return not of_keys or "query" not in of_queries or of_keys == of_queries.replace("query", "key")


def _list_rules(used: Tensor, padding: str, random: str) -> list[_Rule]:
    """Rules of keys or queries, of shape [batch, places], that keep all that are used."""
    counts = used.int()
    empty = ~used.any(-1, keepdim=True)
    until = (counts.flip(-1).cumsum(-1).flip(-1) > 0) | empty
    since = (counts.cumsum(-1) > 0) | empty
    ones = torch.ones_like(used)
    return [_Rule("", 0, ones), _Rule(padding, 1, until), _Rule(f"left_{padding}", 1, since), _Rule(random, 3, used)]


def _list_structures(items: Tensor, seeing: Tensor) -> Iterator[_Rule]:
    """Structures that items, of shape [batch, queries, keys], can have."""
    queries, keys = items.shape[1:]
    ones = torch.ones(queries, keys, dtype=torch.bool, device=items.device)
    first = items.int().argmax(-1)
    last = keys - 1 - items.flip(-1).int().argmax(-1)
    place = torch.arange(queries, device=items.device)
    ahead, behind = int((last - place)[seeing].max()), int((place - first)[seeing].max())
    shift, size = keys - queries, int(items.sum(-1).max())
    yield _Rule("", 0, ones)
    yield _Rule("causal", 1, ones.tril())
    if shift:
        yield _Rule("causal_end", 1, ones.tril(shift))
    if ahead <= shift and 0 < behind + shift + 1 < keys:
        yield _Rule("window", 1, ones.tril(shift).triu(-behind), behind + shift + 1)
    if 0 < (half := max(ahead, behind)) < keys - 1:
        yield _Rule("band", 1, ones.tril(half).triu(-half), half)
    if 1 < size < keys:
        blocks = place[:, None] // size == torch.arange(keys, device=items.device) // size
        yield _Rule("blocks", 1, blocks, size)
        yield _Rule("causal_blocks", 1, blocks.tril(), size)
    if not shift:
        starts = torch.where(seeing, first, -1)
        documents = starts[:, :, None] == starts[:, None, :]
        begins = torch.cat([seeing[:, :1], seeing[:, 1:] & (starts[:, 1:] != starts[:, :-1])], 1)
        count = int(begins.sum(-1).max())
        yield _Rule("documents", 1, documents, count)
        yield _Rule("causal_documents", 1, documents.tril(), count)


def _describe_rows(kept: Tensor, cost: int = 0) -> Kept:
    """The pattern of the rows of the last axis, each by itself."""
    if not kept.dim():
        return Kept("ones" if bool(kept) else "zeros")
    rows = kept.reshape(-1, kept.shape[-1])
    seeing = rows.any(-1)
    used, empty = rows[seeing], not bool(seeing.all())
    suffix, is_long = "+empty_rows" * empty, kept.shape[-1] >= _LONG
    if bool(used.all()):
        return Kept("empty_rows", cost + 2)
    if (side := _find_side(used)) is not None:
        return Kept(f"{side}padding{suffix}", cost + 1 + 2 * empty)
    if not empty and bool((rows.sum(-1) == 1).all()):
        return Kept("one_hot", cost + 2)
    starts = used[:, :1].int() + (used[:, 1:] & ~used[:, :-1]).sum(-1, keepdim=True)
    if is_long and bool((starts == 1).all()):
        return Kept(f"span{suffix}", cost + 3 + 2 * empty)
    return Kept("empty_row", 15, _round(used)) if empty and is_long else Kept("random", 16, _round(kept))


def _find_side(rows: Tensor) -> str | None:
    """How names begin where each row keeps its first places, or its last places ("left_"); None for neither."""
    if bool(rows[:, 0].all()) and bool((rows[:, 1:] <= rows[:, :-1]).all()):
        return ""
    return "left_" if bool(rows[:, -1].all()) and bool((rows[:, 1:] >= rows[:, :-1]).all()) else None


def _round(kept: Tensor) -> float:
    """The share of kept places: two digits, a case is to be read, and neither none nor all."""
    return min(max(round(float(kept.float().mean()), 2), 0.01), 0.99)
