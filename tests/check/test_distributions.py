"""Tensors as models build them are recognised, and draws of what is recognised have the same structure at any size."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fuzz.check.module.distributions import Described, describe_values
from generators.program.kept_places import PATTERNS, SPELLINGS, is_added, split_kind
from generators.program.values import DISTRIBUTIONS, Distribution

B, H, S, D = 3, 2, 12, 16
LENGTHS = torch.tensor([12, 5, 9])
LOWEST = torch.finfo(torch.float32).min
PLACES = torch.arange(S)
LEFT = S - LENGTHS[:, None] <= PLACES
RIGHT = LENGTHS[:, None] > PLACES
CAUSAL = torch.ones(S, S, dtype=torch.bool).tril()
DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(found: Described, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """A draw, by the text that a case has."""
    text = DISTRIBUTIONS[found.kind].expression(repr(tuple(shape)), seed, found.scale, found.param)
    drawn: Tensor = eval(text, {"torch": torch, "rng": rng})
    assert (drawn.shape, drawn.is_contiguous()) == (shape, True) or found.kind == "positions"
    return drawn.to(dtype)


def add(keep: Tensor, low: float = LOWEST) -> Tensor:
    return torch.zeros(keep.shape).masked_fill(~keep, low)


def make_normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng(5))


def hold(values: Tensor) -> set[float]:
    return set(values.flatten().tolist())


def is_left(mask: Tensor) -> bool:
    """Rows keep their last place, and never drop a place after one that they keep."""
    keep = mask != 0
    return bool(keep[..., -1].all()) and bool((keep[..., 1:] >= keep[..., :-1]).all()) and not bool(keep.all())


def is_right(mask: Tensor) -> bool:
    return is_left(mask.flip(-1))


def is_causal_and_left(keep: Tensor) -> bool:
    """The last query sees what its item of the batch has, and the others of that what is not later."""
    causal = torch.ones(keep.shape[-2:], dtype=torch.bool).tril()
    return is_left(keep[:, :, -1]) and torch.equal(keep, causal & keep[:, :, -1:])


def has_empty_rows(mask: Tensor) -> bool:
    """The lowest number in whole rows, and 0 elsewhere in other rows."""
    keep = mask == 0
    return bool((keep | (mask == LOWEST)).all()) and is_causal_and_left(keep) and not bool(keep.any(-1).all())


def is_window(mask: Tensor) -> bool:
    distance = torch.arange(mask.shape[-2])[:, None] - torch.arange(mask.shape[-1])
    return torch.equal(mask, ((distance >= 0) & (distance < 4)).expand_as(mask))


def is_packed(keep: Tensor) -> bool:
    """Places see each other within blocks along the diagonal, of which there are several."""
    start = keep.int().argmax(-1)
    blocks = start[..., :, None] == start[..., None, :]
    return torch.equal(keep, blocks) and len(hold(start)) > 1 and bool((start[..., 1:] >= start[..., :-1]).all())


def are_padded_ids(ids: Tensor) -> bool:
    return is_right(ids != 1) and int(ids.max()) < 50


def count_up(positions: Tensor) -> bool:
    """0, 1, ... after a padding of 1."""
    return all(
        row.tolist() == [1] * dropped + [*range(len(row) - dropped)]
        for row in positions
        for dropped in [len(row) - 1 - int(row[-1])]
    ) and bool((positions[:, -1] < positions.shape[1] - 1).any())


class Row(NamedTuple):
    """A tensor of a model, what it is, and a property of draws of another shape."""

    made: Tensor
    found: Described
    holds: Callable[[Tensor], object]
    other: tuple[int, ...]


ids = torch.randint(2, 50, (B, S), generator=rng(1)).index_fill_(1, torch.tensor([3]), 49)
ROWS = {
    "a left-padded attention_mask": Row(LEFT.long(), Described("left_padding_zero_one"), is_left, (7, 40)),
    "a right-padded attention_mask": Row(RIGHT.long(), Described("padding_zero_one"), is_right, (7, 40)),
    "kept keys": Row(LEFT[:, None, None], Described("left_padding"), is_left, (5, 1, 1, 33)),
    "a key_padding_mask": Row(~RIGHT, Described("padding_drop"), lambda drop: is_right(~drop), (7, 40)),
    "BERT's mask": Row(
        add(RIGHT[:, None, None], -1e4),
        Described("padding_mask", -1e4),
        lambda mask: is_right(mask == 0) and hold(mask) == {-1e4, 0},
        (5, 1, 1, 33),
    ),
    "keys of a batch, for all queries": Row(
        RIGHT[:, None, None].expand(B, H, S, S).clone(),
        Described("key_padding"),
        lambda keep: is_right(keep[:, 0, 0]) and torch.equal(keep, keep[:, :1, :1].expand_as(keep)),
        (4, 3, 7, 20),
    ),
    "causal and left padding": Row(
        CAUSAL & LEFT[:, None, None], Described("causal+left_key_padding"), is_causal_and_left, (5, 1, 21, 21)
    ),
    "the minimum, also in whole rows": Row(
        add(CAUSAL & LEFT[:, None, None]),
        Described("causal+left_key_padding_mask", LOWEST),
        has_empty_rows,
        (5, 1, 9, 9),
    ),
    "-inf in rows without a key": Row(
        add(RIGHT[:, None, :, None] & RIGHT[:, None, None], float("-inf")),
        Described("key_padding+query_padding_mask", float("-inf")),
        lambda mask: torch.equal(mask, mask.mT) and is_right(mask[:, 0, 0] == 0) and bool(mask[:, 0, -1].isinf().any()),
        (5, 1, 9, 9),
    ),
    "queries without a key": Row(
        (PLACES[:, None] % 5 != 2).expand(B, 1, S, S) & CAUSAL,
        Described("causal+empty_rows"),
        lambda keep: (
            0 < int((~keep.any(-1)).sum()) < keep[..., 0].numel()
            and torch.equal(keep, keep.any(-1, keepdim=True) & torch.ones_like(keep).tril())
        ),
        (5, 1, 9, 9),
    ),
    "a step after a prefill": Row(
        torch.ones(1, 1, 4, S, dtype=torch.bool).tril(S - 4),
        Described("causal_end"),
        lambda keep: torch.equal(keep, torch.ones_like(keep).tril(keep.shape[-1] - keep.shape[-2])),
        (2, 1, 3, 20),
    ),
    "a sliding window": Row(
        (CAUSAL & ~CAUSAL.tril(-4)).expand(B, 1, S, S), Described("window", param=4.0), is_window, (2, 1, 21, 21)
    ),
    "a sliding window and padding": Row(
        add(CAUSAL & ~CAUSAL.tril(-3) & LEFT[:, None, None], -1e9),
        Described("window+left_key_padding_mask", -1e9, 3.0),
        lambda mask: int((mask == 0).sum(-1).max()) == 3 and is_left(mask[:, 0].eq(0).any(-2)),
        (6, 1, 21, 21),
    ),
    "local attention": Row(
        ((PLACES[:, None] - PLACES).abs() <= 2)[None, None].expand(B, 1, S, S) & RIGHT[:, None, None],
        Described("band+key_padding", param=2.0),
        lambda keep: int(keep.sum(-1).max()) == 5 and is_right(keep[:, 0].any(-2)),
        (6, 1, 21, 21),
    ),
    "chunks": Row(
        ((PLACES[:, None] // 4 == PLACES // 4) & CAUSAL)[None, None],
        Described("causal_blocks", param=4.0),
        lambda keep: keep[0, 0].sum(-1).tolist() == [1 + place % 4 for place in range(keep.shape[-1])],
        (2, 1, 21, 21),
    ),
    "packed sequences": Row(DOCUMENTS[:, None] == DOCUMENTS, Described("documents", param=3.0), is_packed, (31, 31)),
    "packed sequences, causal": Row(
        add((DOCUMENTS[:, None] == DOCUMENTS) & CAUSAL)[None, None],
        Described("causal_documents_mask", LOWEST, 3.0),
        lambda mask: is_packed((mask == 0) | (mask == 0).mT),
        (1, 1, 31, 31),
    ),
    "a bias and a mask in one": Row(
        make_normal(B, H, S, S).masked_fill(~(CAUSAL & LEFT[:, None, None]), LOWEST),
        Described("causal+left_key_padding_bias", LOWEST),
        lambda bias: has_empty_rows(torch.where(bias == LOWEST, LOWEST, 0.0)) and len(hold(bias)) > 9,
        (4, 3, 9, 9),
    ),
    "a cache between padding and unused": Row(
        (LEFT & (PLACES < 10))[:, None, None],
        Described("span"),
        lambda keep: bool(((keep[..., 1:] > keep[..., :-1]).sum(-1) + keep[..., 0] <= 1).all()),
        (4, 1, 1, 33),
    ),
    "no structure": Row(
        torch.rand(B, S, generator=rng(2)) < 0.25,
        Described("random", round(float((torch.rand(B, S, generator=rng(2)) < 0.25).float().mean()), 2)),
        lambda keep: 0.1 < keep.float().mean() < 0.5,
        (9, 40),
    ),
    "position_ids": Row(
        PLACES[None] + 2, Described("positions", 2.0), lambda p: p[0, 0] == 2 == p[0, -1] - 39, (1, 40)
    ),
    "position_ids of left padding": Row(
        (LEFT.long().cumsum(-1) - 1).masked_fill(~LEFT, 1),
        Described("left_padded_positions", 0.0, 1.0),
        count_up,
        (6, 30),
    ),
    "RoBERTa's positions": Row(
        RIGHT.long().cumsum(-1) * RIGHT + 1,
        Described("padded_positions", 2.0, 1.0),
        lambda p: is_right(p != 1) and bool((p[:, 0] == 2).all()) and 2 < int(p.max()) < 32,
        (6, 30),
    ),
    "positions of packed sequences": Row(
        torch.cat([torch.arange(3), torch.arange(5), torch.arange(4)])[None],
        Described("packed_positions", 1.0, 3.0),
        lambda p: bool(((p[:, 1:] == p[:, :-1] + 1) | (p[:, 1:] == 0)).all()) and 1 < int((p == 0).sum()) <= 3,
        (1, 40),
    ),
    "positions after caches": Row(
        torch.tensor([[4], [9], [0]]) + torch.arange(3),
        Described("offset_positions", 10.0),
        lambda p: bool((p.diff() == 1).all()) and len(hold(p[:, 0])) > 1,
        (6, 5),
    ),
    "cu_seqlens": Row(
        torch.tensor([0, 3, 8, 12], dtype=torch.int32),
        Described("cumulative_lengths", 12.0),
        lambda ends: (int(ends[0]), int(ends[-1])) == (0, 12) and bool((ends.diff() >= 0).all()),
        (9,),
    ),
    "seqlens": Row(LENGTHS.int(), Described("lengths", 13.0), lambda n: 1 <= int(n.min()) <= int(n.max()) < 13, (30,)),
    "sorted indices": Row(
        torch.tensor([[0, 2, 2, 7], [1, 1, 3, 5]]),
        Described("sorted_tokens", 8.0),
        lambda i: bool((i.diff() >= 0).all()) and int(i.max()) < 8,
        (3, 30),
    ),
    "an order": Row(
        torch.tensor([3, 0, 2, 1]),
        Described("permutation"),
        lambda p: torch.equal(p.sort().values, torch.arange(9)),
        (9,),
    ),
    "padded ids": Row(torch.where(RIGHT, ids, 1), Described("padded_tokens", 50.0, 1.0), are_padded_ids, (7, 40)),
    "ids padded on the left": Row(
        torch.where(LEFT, ids, 1),
        Described("left_padded_tokens", 50.0, 1.0),
        lambda i: are_padded_ids(i.flip(-1)),
        (7, 40),
    ),
    "labels": Row(
        torch.where(RIGHT, ids, -100),
        Described("padded_tokens", 50.0, -100.0),
        lambda labels: is_right(labels != -100) and int(labels[:, 0].min()) >= 0,
        (7, 40),
    ),
    "ids": Row(ids, Described("tokens", 50.0), lambda i: 40 < int(i.max()) < 50, (9, 40)),
    "differences": Row(
        PLACES - PLACES[:, None],
        Described("between", 12.0, -11.0),
        lambda d: -11 <= int(d.min()) < 0 < int(d.max()) < 12,
        (9, 9),
    ),
    "one_hot": Row(
        functional.one_hot(torch.tensor([[4, 0, 3], [4, 1, 1]]), 5).float(),
        Described("one_hot_zero_one"),
        lambda hot: bool((hot.sum(-1) == 1).all()) and hold(hot) == {0, 1},
        (4, 7, 9),
    ),
    "zeros": Row(torch.zeros(B, S), Described("constant", 0.0), lambda x: not x.any(), (4, 7)),
    "integer zeros": Row(torch.zeros(B, S).long(), Described("constant", 0.0), lambda x: not x.any(), (4, 7)),
    "equal rows": Row(
        make_normal(D).expand(B, S, D),
        Described("repeated_rows", 1.1, 1.0),
        lambda x: bool((x == x[0, 0]).all()),
        (2, 5, 40),
    ),
    "rows of few tokens": Row(
        make_normal(4, D)[ids % 4],
        Described("repeated_rows", 1.0, 4.0),
        lambda x: len({tuple(row) for row in x.flatten(0, 1).tolist()}) == 4,
        (2, 50, 40),
    ),
    "a repeated prompt": Row(
        make_normal(1, S, D).repeat(B, 1, 1),
        Described("equal_items", 0.96),
        lambda x: bool((x == x[:1]).all()) and len(hold(x[0])) == x[0].numel(),
        (2, 5, 40),
    ),
    "an unused tail of a cache": Row(
        make_normal(B, H, S, D) * (PLACES < 7)[:, None],
        Described("zero_tail", 1.0),
        lambda x: is_right((x != 0).any(-1)[:, 0]) and bool((x[..., :1, :] != 0).all()),
        (5, 3, 30, 8),
    ),
    "padded rows": Row(
        make_normal(B, S, D) * LEFT[..., None],
        Described("zero_head", 0.99),
        lambda x: is_left((x != 0).any(-1)),
        (5, 30, 8),
    ),
    "a massive channel": Row(
        torch.cat([make_normal(50, S, D).abs() + 9, torch.full((50, S, 1), 9e3)], -1),
        Described("channels", 720.0),
        lambda x: 1e2 < x.abs().amax((0, 1)).max() / x.abs().amax((0, 1)).median() < 1e4,
        (3, 60, 80),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_tensor_of_a_model_is_recognised_and_drawn_alike(name: str) -> None:
    """At the size of the model, where a draw of lengths may leave no padding, and at another."""
    row = ROWS[name]
    found = describe_values(row.made)
    assert (found.kind, found.param) == (row.found.kind, row.found.param)
    assert found.scale == pytest.approx(row.found.scale, 0.15)
    drawn = [draw(found, tuple(row.made.shape), row.made.dtype, seed) for seed in range(20)]
    assert found.kind in [describe_values(one).kind for one in drawn]
    assert [bool(row.holds(draw(found, row.other, row.made.dtype, seed))) for seed in range(5)] == [True] * 5


def test_masks_ids_and_positions_of_one_seed_have_the_same_lengths() -> None:
    """As in a batch of prompts, and of packed sequences."""
    keep = draw(Described("left_padding_zero_one"), (B, S), torch.int64, 3)
    added = draw(Described("causal+left_key_padding_mask", LOWEST), (B, 1, S, S), torch.float32, 3)
    tokens = draw(Described("left_padded_tokens", 50.0, 1.0), (B, S), torch.int64, 3)
    positions = draw(Described("left_padded_positions", 0.0, 1.0), (B, S), torch.int64, 3)
    assert torch.equal(added[:, 0, -1] == 0, keep == 1)
    assert torch.equal(tokens != 1, keep == 1)
    assert torch.equal(positions, (keep.cumsum(-1) - 1).masked_fill(keep == 0, 1))
    documents = draw(Described("causal_documents", param=3.0), (B, 1, S, S), torch.bool, 3)
    assert torch.equal(
        documents[:, 0].sum(-1) - 1, draw(Described("packed_positions", param=3.0), (B, S), torch.int64, 3)
    )


SPELLED = [
    (pattern, spelling)
    for name, pattern in PATTERNS.items()
    for spelling in SPELLINGS
    # One rule hides the other, or the places that are dropped have a pattern too.
    if name not in ("ones", "zeros")
    and not (len(pattern.parts) == 3 and "query" in name)
    and spelling.suffix != "_drop"
]
DTYPES = {"bool": torch.bool, "numbers": torch.int64, "floats": torch.float32}


@pytest.mark.samples
def test_draws_of_each_pattern_are_recognised_as_it() -> None:
    """Of some draws one is, in each spelling."""
    for pattern, spelling in SPELLED:
        kind = DISTRIBUTIONS[pattern.name + spelling.suffix]
        scale = -1e4 if spelling.low else 0.6 if "{scale}" in kind.template else 1.0
        found = Described(kind.name, scale, 5.0 if kind.default else 0.6 if "{kept}" in kind.template else 0.0)
        shape = (6, 1, 18 if "causal_end" in pattern.name else 24, 24)
        drawn = [describe_values(draw(found, shape, DTYPES[spelling.kinds], seed)) for seed in range(4)]
        # A share is that of the draw.
        wanted = None if "{share}" in pattern.text else found.param
        assert (kind.name, wanted) in [(one.kind, None if wanted is None else one.param) for one in drawn], drawn


KINDS = [kind for kind in DISTRIBUTIONS.values() if kind.stop or split_kind(kind.name)]


@pytest.mark.samples
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 99), st.data())
def test_any_draw_of_any_size_has_a_description_that_can_be_drawn(
    kind: Distribution, shape: list[int], seed: int, data: st.DataObject
) -> None:
    dtype = getattr(torch, data.draw(st.sampled_from(kind.dtypes)))
    drawn = draw(
        Described(kind.name, -1e4 if is_added(kind.name) else 5.0, float(kind.default)), tuple(shape), dtype, seed
    )
    found = describe_values(drawn)
    assert str(dtype).removeprefix("torch.") in DISTRIBUTIONS[found.kind].dtypes
    again = draw(found, tuple(shape), dtype)
    assert again.shape == drawn.shape
