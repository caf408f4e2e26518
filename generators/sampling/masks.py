"""Draws masks: their spelling, shape, dtype and values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from generators.program.case import Values
from generators.program.sizes import ONE, Size
from generators.program.values import LOWEST
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout


@dataclass(frozen=True, slots=True)
class Visibility:
    """The keys that a query sees, by `causal` and `window` of a Contract. Without both, it sees all keys."""

    causal: str | None = None
    window: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return self.causal is not None or self.window not in (None, (-1, -1))


def offset(visibility: Visibility, query: Size, key: Size) -> Size:
    """The position of query 0 among the keys."""
    return key - query if visibility.causal == "bottom_right" else Size.of(0)


def spell_visibility(b: Builder, c: Choices, visibility: Visibility, query: Size, key: Size) -> str:
    """A boolean value, [S, T], True where the key is seen: from triangles of ones, or from differences of places."""
    start = offset(visibility, query, key)
    left, right = visibility.window or (-1, -1)
    right = 0 if visibility.causal else right
    if c.pick((True, False)):
        seen = b.op("ones", to="keep", sizes=(query, key), dtype="bool")
        seen = b.op("tril", seen, diagonal=start + right) if right >= 0 else seen
        return b.op("triu", seen, diagonal=start - left) if left >= 0 else seen
    rows, columns = position_indices(b, query, key, start)
    if left < 0 and right == 0:
        return b.op("le", columns, rows, to="keep")
    distance = b.op("sub", rows, columns, to="distance")
    if left == right:
        return b.op("le", b.op("abs", distance), to="keep", other=left)
    near = b.op("le", distance, to="near", other=left) if left >= 0 else ""
    past = b.op("ge", distance, to="past", other=-right) if right >= 0 else ""
    return b.op("logical_and", past, near, to="keep") if near and past else near or past


def position_indices(b: Builder, query: Size, key: Size, start: Size, dtype: str = "int64") -> tuple[str, str]:
    """The positions of the queries, [S, 1], from `start` on, and of the keys, [T], from 0 on."""
    rows = b.op("arange", to="rows", start=start, stop=start + query, dtype=dtype)
    return b.op("unsqueeze", rows, dim=-1), b.op("arange", to="columns", stop=key, dtype=dtype)


NEG_INF = float("-inf")
_TOP_LEFT = Visibility("top_left")
_FILLS: dict[float | str, float] = {NEG_INF: 5, "min": 3, -1e9: 2, -1e4: 1}
_EQUAL_0_FILLS: dict[float | str, float] = {NEG_INF: 6.0, "min": 2.0, -1e4: 1.0}
_ADDED: Mapping[str, tuple[Mapping[str, float], float]] = {
    "bool": ({"random": 4.0, "ones": 1.0, "zeros": 1.0}, 0.6),
    "int64": ({"zero_one": 1.0, "small_counts": 1.0, "signed": 1.0}, 1.0),
}
"""Distributions, and their scale, of added masks that are not floating, by dtype."""
_ADDITIVE = {"normal": 4.0, "random_mask": 3.0, "causal_mask": 2.0, "padding_mask": 2.0, "empty_row_mask": 2.0}
_ADDITIVE |= {"zero_one": 0.5, "constant": 0.5}
_KEPT = {"random": 4.0, "padding": 2.0, "empty_row": 2.5, "ones": 0.7, "zeros": 0.4, "causal": 2.0}
_PADDING = {"random": 1.0, "padding": 1.0, "ones": 1.0}
_COUNTS = {"zero_one": 4.0, "small_counts": 3.0, "signed": 2.0}


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores to mask, [B, H, S, T] or [B, S, T]."""

    name: str
    visibility: Visibility  # the keys that the mask has to leave visible
    in_place: bool  # whether they may be overwritten


@dataclass(frozen=True, slots=True)
class Mask:
    """A value that hides scores."""

    value: str
    visibility: Visibility = Visibility()  # the visibility that the value contains
    given: str | None = None  # the rest of the value: a caller's mask

    def note_contract(self, b: Builder) -> None:
        """Note the mask in the contract, with the fill -inf."""
        b.note_contract(mask=self.given, causal=self.visibility.causal, window=self.visibility.window)


class MaskKind(NamedTuple):
    """A kind of mask: how its value is built and hides scores. A new kind is a row of `MASKS`."""

    weight: float  # how often it is drawn if no visibility is required
    build: Callable[[Builder, Choices, Scores], Mask]
    hide: Callable[[Builder, Choices, Scores, Mask], str]  # writes the masked scores and notes the contract
    visibility_weight: float = 0.0  # how often it is drawn to restrict visibility; 0 if it can't


def apply_mask(b: Builder, c: Choices, scores: str, visibility: Visibility) -> str:
    """Mask scores down to this visibility; if that is all keys, by any kind of mask, or not at all."""
    masked = Scores(scores, visibility, b.may_overwrite(scores) and c.deviates())
    if visibility:
        # Heaviest first: draws depend on the order.
        kinds = sorted(MASKS.values(), key=lambda kind: -kind.visibility_weight)
        kind = c.draw({kind: kind.visibility_weight for kind in kinds})
    else:
        name = c.choose("mask.kind", {"none": 34.0} | {name: kind.weight for name, kind in MASKS.items()})
        if name == "none":
            return scores
        kind = MASKS[name]
    return kind.hide(b, c, masked, kind.build(b, c, masked))


def draw_shape(c: Choices, full: tuple[Size, ...], least: int = 1) -> tuple[Size, ...]:
    """A shape with at least `least` axes that broadcasts to `full`, the shape of scores.

    Either a usual shape, or any axes of size 1 and any leading axes left out.
    """
    form = c.choose("mask.shape", {"square": 3.0, "ones": 4.0, "batch": 3.0, "keys": 4.0, "full": 2.0, "any": 4.0})
    batch, square, ones = full[:1], full[-2:], (ONE,) * (len(full) - 2)
    if form == "any":
        shape = tuple(ONE if c.chance(0.4) else s for s in full)
        return shape[c.below(len(shape) + 1 - least) :]
    return {
        "square": square,
        "ones": (*ones, *square),
        "batch": (*batch, *ones[1:], *square),
        "keys": (*batch, *ones, full[-1]),
        "full": full,
    }[form]


def additive_input(b: Builder, c: Choices, shape: tuple[Size, ...], dtype: str = "") -> str:
    """A mask to be added, of this dtype or any."""
    dtype = dtype or c.choose_default(
        {"float32": 4.0, "bool": 2.5, "int64": 1.0, "float16": 0.3, "bfloat16": 0.3} | {b.dtype: 10.0}
    )
    if dtype in _ADDED:
        kinds, scale = _ADDED[dtype]
        values = Values(c.draw(kinds), scale=scale)
    else:
        values = _draw_additive_values(c, len(shape))
    mask = b.freeze(c, b.input("mask", shape, values, dtype, draw_layout(c, len(shape))))
    b.note_contract(bias=mask)
    b.drop_contract_unless(b.is_float(mask))
    return mask


def _draw_additive_values(c: Choices, rank: int) -> Values:
    kind = c.draw({**_ADDITIVE, "causal_mask": 2.0 if rank >= 2 else 0.0})
    scale = c.pick((1.0, 1.0, 3.0, 0.1))
    if kind.endswith("mask"):
        # -3e4 still fits float16. An empty row with -inf is NaN by design, so finite fills are drawn more often.
        scale = c.draw({NEG_INF: 3.0, -3e4: 3.0, -1e4: 2.0, -100.0: 1.0, -1.0: 1.0})
        if kind == "empty_row_mask" and c.chance(0.7):
            scale = -3e4
    return Values(kind, scale=scale)


def boolean_input(b: Builder, c: Choices, shape: tuple[Size, ...]) -> str:
    """A mask of the keys to be kept."""
    values = Values(c.draw({**_KEPT, "causal": 2.0 if len(shape) >= 2 else 0.0}), scale=0.7)
    return b.input("keep", shape, values, "bool", draw_layout(c, len(shape)))


def _build_keep(b: Builder, c: Choices, scores: Scores) -> Mask:
    """A boolean mask of kept keys: the visibility, sometimes joined with a caller's mask; or a caller's mask alone."""
    kept = "" if scores.visibility else c.choose("mask.keep", {"causal": 35.0, "given": 65.0, "listed": 4.0})
    query, key = b.shape(scores.name)[-2:]
    if kept == "listed" and b.size(key):
        places = b.input("places", (query, 1), Values("tokens", scale=float(b.size(key))), "int64")
        listed = b.op("scatter", b.op("ones", to="keep", sizes=(query, key), dtype="bool"), places, value=0)
        return Mask(listed, given=listed)
    alone = kept == "causal"
    shown = _TOP_LEFT if alone else scores.visibility
    if not shown:
        mask = boolean_input(b, c, draw_shape(c, b.shape(scores.name)))
        return Mask(mask, given=mask)
    seen = spell_visibility(b, c, shown, query, key)
    if b.rank(scores.name) == 4 and c.chance(0.3):
        seen = b.op("view", seen, sizes=(ONE, ONE, query, key))
    if alone or c.chance(0.75):
        return Mask(seen, shown)
    mask = boolean_input(b, c, draw_shape(c, b.shape(scores.name)))
    return Mask(b.op("logical_and", *c.pick(((seen, mask), (mask, seen))), to="keep"), shown, mask)


def _build_bias(b: Builder, c: Choices, scores: Scores) -> Mask:
    """A mask to be added: a caller's, or made from the visibility, which is causal from the top left by default."""
    if not scores.visibility and c.choose("mask.from", {"given": 3.0, "made": 1.0}) == "given":
        mask = additive_input(b, c, draw_shape(c, b.shape(scores.name)))
        return Mask(mask, given=mask)
    dtype = b.dtype_of(scores.name)
    if not scores.visibility and c.choose("mask.triangle", {"triu": 1.0, "keep": 1.0}) == "triu":
        low = c.draw({NEG_INF: 3.0, -1e4: 1.0})
        full = b.op("full", to="causal", sizes=b.shape(scores.name)[-2:], value=low, dtype=dtype)
        bias = b.op("triu", full, diagonal=1)
        b.note_contract(**({"causal": "top_left"} if low == NEG_INF else {"bias": bias}))
        return Mask(bias)
    seen = _build_keep(b, c, replace(scores, visibility=scores.visibility or _TOP_LEFT))
    if c.chance(0.3):
        bias = b.op("where", seen.value, to="bias", value=0.0, other=NEG_INF)
    else:
        zeros = b.op("full", to="bias", sizes=b.shape(seen.value), value=0.0, dtype=dtype)
        bias = b.op("masked_fill", zeros, b.op("logical_not", seen.value), to="bias", value=NEG_INF)
    seen.note_contract(b)
    return Mask(bias)


def _view_over_scores(b: Builder, mask: str, scores: Scores) -> str:
    batch, key = b.shape(mask)
    return b.op("view", mask, sizes=(batch, *(ONE,) * (b.rank(scores.name) - 2), key))


def _build_scaled_padding(b: Builder, c: Choices, scores: Scores) -> Mask:
    """As in BERT: (1 - padding) * a large negative number, broadcast over heads and queries."""
    batch, *_, key = b.shape(scores.name)
    values = Values(c.draw({"zero_one": 4.0, "small_counts": 1.0}))
    mask = b.freeze(c, b.input("padding", (batch, key), values, b.dtype_of(scores.name)))
    masked = b.op("sub", _view_over_scores(b, mask, scores), other=1.0, reverse=True, to="masked")
    low = b.op("mul", masked, other=c.pick((-1e4, -3e4)), to="bias")
    b.note_contract(bias=low)
    return Mask(low)


def _build_comparison(b: Builder, c: Choices, scores: Scores) -> Mask:
    """As in DistilBERT: True where a key is dropped, because its number in a mask is 0."""
    batch, *_, key = b.shape(scores.name)
    dtype = c.draw({"int64": 5.0, "bool": 2.0, "float32": 1.0, "uint8": 0.5} | {b.dtype: 4.0})
    counts = {**_COUNTS, "signed": 0.0} if dtype == "uint8" else _COUNTS
    values = Values(c.draw(_PADDING), scale=0.7) if dtype == "bool" else Values(c.draw(counts))
    mask = b.input("mask", (batch, key), values, dtype)
    number = c.choose_default({0: 8.0, 1: 1.0})
    drop = b.op(c.choose_default({"eq": 6.0, "ne": 1.0, "gt": 0.5}), mask, to="drop", other=number)
    return Mask(_view_over_scores(b, drop, scores))


def _draw_fill(b: Builder, c: Choices, scores: Scores) -> float | str:
    # `causal` and `window` of a contract mean the fill -inf, so these masks mostly get it.
    if scores.visibility and c.chance(0.8):
        return NEG_INF
    fill = c.choose("mask.fill", _FILLS)
    return -1e4 if fill == -1e9 and b.dtype_of(scores.name) == "float16" else fill


def _note_fill(b: Builder, scores: Scores, mask: str, means: str, fill: float | str) -> None:
    value = LOWEST[b.dtype_of(scores.name)] if isinstance(fill, str) else fill
    b.note_contract(mask=mask, mask_means=means, fill=value)


def _add(b: Builder, c: Choices, scores: Scores, mask: Mask) -> str:
    if mask.given is None:
        return b.op("add", scores.name, mask.value, to="scores")
    if c.deviates():
        return b.op("add", mask.value, scores.name, to="scores")
    fits = scores.in_place and b.dtype_of(mask.value) == b.dtype_of(scores.name)
    form = "in_place" if fits else c.choose_default({"operator": 8.0, "method": 1.0, "function": 1.0})
    alpha = c.choose_default({1: 8.0, 2: 1.0, 0.5: 1.0, -1: 1.0})
    b.drop_contract_unless(alpha == 1)
    return b.op("add", scores.name, mask.value, to="scores", form=form, alpha=alpha)


def _fill(b: Builder, c: Choices, scores: Scores, keep: Mask) -> str:
    # The mask may mark the keys to drop in place of the keys to keep.
    inverted = bool(scores.visibility) or c.chance(0.6)
    drop = b.op("logical_not", keep.value, to="drop") if inverted else keep.value
    if c.chance(0.3):
        drop = b.op("expand_as", drop, scores.name)
    fill = _draw_fill(b, c, scores)
    in_place = scores.in_place and b.may_overwrite(scores.name)
    form = "in_place" if in_place else c.choose_default({"method": 8.0, "function": 1.0})
    if inverted and keep.visibility and fill == NEG_INF:
        keep.note_contract(b)
    else:
        _note_fill(b, scores, drop, "drop", fill)
    return b.op("masked_fill", scores.name, drop, to="scores", value=fill, form=form)


def _fill_expanded(b: Builder, c: Choices, scores: Scores, drop: Mask) -> str:
    expand = c.choose("mask.expand", {"expand_as": 4.0, "expand": 2.0, "broadcast": 3.0})
    value = drop.value
    if expand == "expand_as":
        value = b.op("expand_as", value, scores.name)
    elif expand == "expand":
        value = b.op("expand", value, sizes=b.shape(scores.name))
    fill = c.choose("mask.fill", _EQUAL_0_FILLS)
    _note_fill(b, scores, value, "drop", fill)
    return b.op("masked_fill", scores.name, value, to="scores", value=fill)


def _where(b: Builder, c: Choices, scores: Scores, keep: Mask) -> str:
    fill = _draw_fill(b, c, scores)
    reverse = c.deviates() and c.chance(0.5) and not scores.visibility
    if keep.visibility and fill == NEG_INF and not reverse:
        keep.note_contract(b)
    else:
        _note_fill(b, scores, keep.value, "drop" if reverse else "keep", fill)
    if c.choose("mask.low", {"full": 6.0, "number": 4.0}) == "full":
        low = b.op("full", to="low", sizes=(), value=fill, dtype=b.dtype_of(scores.name))
        return b.op("where", keep.value, *((low, scores.name) if reverse else (scores.name, low)), to="scores")
    return b.op("where", keep.value, scores.name, to="scores", other=fill, reverse=reverse)


def _where_and_add(b: Builder, c: Choices, scores: Scores, keep: Mask) -> str:
    first = _where(b, c, scores, keep)
    return b.op("add", first, additive_input(b, c, draw_shape(c, b.shape(scores.name))), to="scores")


MASKS: Mapping[str, MaskKind] = {
    "add": MaskKind(24, _build_bias, _add, 2.0),
    "equal_0": MaskKind(8, _build_comparison, _fill_expanded),
    "fill": MaskKind(12, _build_keep, _fill, 4.0),
    "where": MaskKind(12, _build_keep, _where, 3.0),
    "where_and_add": MaskKind(5, _build_keep, _where_and_add, 1.0),
    "scaled_padding": MaskKind(4, _build_scaled_padding, _add),
}
"""The kinds of mask. Draws depend on the order."""
