"""Masks: every spelling, every shape and dtype that eager accepts, every value that callers pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from generators.program.case import Values
from generators.program.dtypes import LOWEST
from generators.program.sizes import ONE, Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout


@dataclass(frozen=True, slots=True)
class Pattern:
    """`causal` and `window` of a Contract. Without either, every key is seen."""

    causal: str | None = None
    window: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return self.causal is not None or self.window is not None


NO_PATTERN = Pattern()


def offset(pattern: Pattern, query: Size, key: Size) -> Size:
    """The place among the keys that query 0 stands at."""
    return key - query if pattern.causal == "bottom_right" else Size.of(0)


def spell_pattern(b: Builder, c: Choices, pattern: Pattern, query: Size, key: Size) -> str:
    """A boolean value, [S, T], True where the key is seen: from triangles of ones, or from differences of places."""
    start = offset(pattern, query, key)
    left, right = pattern.window or (-1, -1)
    right = 0 if pattern.causal else right
    if c.chance(0.5):
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
    """Where the queries stand, [S, 1], and the keys, [T]; query 0 stands at `start`."""
    rows = b.op("arange", to="rows", start=start, stop=start + query, dtype=dtype)
    return b.op("unsqueeze", rows, dim=-1), b.op("arange", to="columns", stop=key, dtype=dtype)


NEG_INF = float("-inf")
_TOP_LEFT = Pattern("top_left")
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
    pattern: Pattern
    in_place: bool
    """Whether they may be overwritten."""


@dataclass(frozen=True, slots=True)
class MaskKind:
    """A way to mask scores."""

    weight: float
    """How often it is drawn where no pattern is asked for."""
    write: Callable[[Builder, Choices, Scores], str]
    """Writes the masked scores and notes the contract."""
    pattern_weight: float = 0.0
    """How often it is drawn for a pattern, which it has to apply; 0 if it can't."""


def apply_mask(b: Builder, c: Choices, scores: str, pattern: Pattern) -> str:
    """Mask scores by the pattern; without a pattern by any kind of mask, or not at all."""
    masked = Scores(scores, pattern, b.may_overwrite(scores) and c.deviates())
    if not pattern:
        return MASKS[c.choose("mask.kind", {name: kind.weight for name, kind in MASKS.items()})].write(b, c, masked)
    # Heaviest first: draws depend on the order.
    kinds = sorted(MASKS.values(), key=lambda kind: -kind.pattern_weight)
    return c.draw({kind: kind.pattern_weight for kind in kinds}).write(b, c, masked)


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


@dataclass(frozen=True, slots=True)
class _KeepMask:
    """A boolean value, True where a key is kept."""

    value: str
    pattern: Pattern = NO_PATTERN
    """The pattern in the value."""
    mask: str | None = None
    """The mask that the pattern is joined with, or the value itself."""

    def note_contract(self, b: Builder) -> None:
        """Note that hidden keys are gone for good: -inf."""
        b.note_contract(mask=self.mask, causal=self.pattern.causal, window=self.pattern.window)


def additive_input(b: Builder, c: Choices, shape: tuple[Size, ...], dtype: str = "") -> str:
    """A mask to be added, of this dtype or any."""
    dtype = dtype or c.choose_default(
        {"float32": 4.0, "bool": 2.5, "int64": 1.0, "float16": 0.3, "bfloat16": 0.3} | {b.dtype: 10.0}
    )
    values = _draw_additive_values(c, len(shape)) if dtype not in _ADDED else _draw_values(c, *_ADDED[dtype])
    mask = b.freeze(c, b.input("mask", shape, values, dtype, draw_layout(c, len(shape))))
    b.note_contract(bias=mask)
    b.drop_contract_unless(b.is_float(mask))
    return mask


def _draw_values(c: Choices, kinds: Mapping[str, float], scale: float = 1.0) -> Values:
    return Values(c.draw(kinds), scale=scale)


def _draw_additive_values(c: Choices, rank: int) -> Values:
    kind = c.draw({**_ADDITIVE, "causal_mask": 2.0 if rank >= 2 else 0.0})
    scale = c.pick((1.0, 1.0, 3.0, 0.1))
    if kind.endswith("mask"):
        # -3e4 still fits float16. An empty row with -inf is NaN by design, so finite fills are drawn more often.
        scale = c.draw({NEG_INF: 3.0, -3e4: 3.0, -1e4: 2.0, -100.0: 1.0, -1.0: 1.0})
        if kind == "empty_row_mask" and c.chance(0.7):
            scale = -3e4
    return Values(kind, scale=scale)


def _add_mask(b: Builder, c: Choices, scores: Scores) -> str:
    if scores.pattern or c.choose("mask.from", {"given": 3.0, "made": 1.0}) == "made":
        return _add_pattern(b, c, scores.name, scores.pattern)
    mask = additive_input(b, c, draw_shape(c, b.shape(scores.name)))
    if c.deviates():
        return b.op("add", mask, scores.name, to="scores")
    fits = scores.in_place and b.dtype_of(mask) == b.dtype_of(scores.name)
    form = "in_place" if fits else c.choose_default({"operator": 8.0, "method": 1.0, "function": 1.0})
    alpha = c.choose_default({1: 8.0, 2: 1.0, 0.5: 1.0, -1: 1.0})
    b.drop_contract_unless(alpha == 1)
    return b.op("add", scores.name, mask, to="scores", form=form, alpha=alpha)


def _add_pattern(b: Builder, c: Choices, scores: str, pattern: Pattern) -> str:
    """A tensor of zeros and low numbers, made inside and added: by the pattern, or causal from the first key."""
    query, key = b.shape(scores)[-2:]
    if not pattern and c.choose("mask.triangle", {"triu": 1.0, "keep": 1.0}) == "triu":
        low = c.draw({NEG_INF: 3.0, -1e4: 1.0})
        full = b.op("full", to="causal", sizes=(query, key), value=low, dtype=b.dtype_of(scores))
        bias = b.op("triu", full, diagonal=1)
        b.note_contract(**({"causal": "top_left"} if low == NEG_INF else {"bias": bias}))
        return b.op("add", scores, bias, to="scores")
    seen = _draw_keep(b, c, scores, pattern or _TOP_LEFT)
    if c.chance(0.3):
        bias = b.op("where", seen.value, to="bias", value=0.0, other=NEG_INF)
    else:
        zeros = b.op("full", to="bias", sizes=b.shape(seen.value), value=0.0, dtype=b.dtype_of(scores))
        bias = b.op("masked_fill", zeros, b.op("logical_not", seen.value), to="bias", value=NEG_INF)
    seen.note_contract(b)
    return b.op("add", scores, bias, to="scores")


def boolean_input(b: Builder, c: Choices, shape: tuple[Size, ...]) -> str:
    """A mask of the keys to be kept."""
    values = _draw_values(c, {**_KEPT, "causal": 2.0 if len(shape) >= 2 else 0.0}, 0.7)
    return b.input("keep", shape, values, "bool", draw_layout(c, len(shape)))


def _draw_keep(b: Builder, c: Choices, scores: str, pattern: Pattern) -> _KeepMask:
    """The kept keys: by the pattern, now and then joined with a caller's mask, or by a mask alone."""
    kept = "" if pattern else c.choose("mask.keep", {"causal": 35.0, "given": 65.0, "listed": 4.0})
    query, key = b.shape(scores)[-2:]
    if kept == "listed" and b.size(key):
        places = b.input("places", (query, 1), Values("tokens", scale=float(b.size(key))), "int64")
        listed = b.op("scatter", b.op("ones", to="keep", sizes=(query, key), dtype="bool"), places, value=0)
        return _KeepMask(listed, mask=listed)
    alone = kept == "causal"
    shown = _TOP_LEFT if alone else pattern
    if not shown:
        mask = boolean_input(b, c, draw_shape(c, b.shape(scores)))
        return _KeepMask(mask, mask=mask)
    seen = spell_pattern(b, c, shown, query, key)
    if b.rank(scores) == 4 and c.chance(0.3):
        seen = b.op("view", seen, sizes=(ONE, ONE, query, key))
    if alone or c.chance(0.75):
        return _KeepMask(seen, shown)
    mask = boolean_input(b, c, draw_shape(c, b.shape(scores)))
    return _KeepMask(b.op("logical_and", *c.pick(((seen, mask), (mask, seen))), to="keep"), shown, mask)


def _draw_fill(b: Builder, c: Choices, scores: Scores) -> float | str:
    # A contract says of patterns that they hide for good, as -inf alone does.
    if scores.pattern and c.chance(0.8):
        return NEG_INF
    fill = c.choose("mask.fill", _FILLS)
    return -1e4 if fill == -1e9 and b.dtype_of(scores.name) == "float16" else fill


def _note_fill(b: Builder, scores: Scores, mask: str, means: str, fill: float | str) -> None:
    value = LOWEST[b.dtype_of(scores.name)] if isinstance(fill, str) else fill
    b.note_contract(mask=mask, mask_means=means, fill=value)


def _fill_masked(b: Builder, c: Choices, scores: Scores) -> str:
    seen = _draw_keep(b, c, scores.name, scores.pattern)
    # A caller's mask may as well say which keys to drop, and so may a triangle.
    inverted = bool(scores.pattern) or c.chance(0.6)
    drop = b.op("logical_not", seen.value, to="drop") if inverted else seen.value
    if c.chance(0.3):
        drop = b.op("expand_as", drop, scores.name)
    fill = _draw_fill(b, c, scores)
    in_place = scores.in_place and b.may_overwrite(scores.name)
    form = "in_place" if in_place else c.choose_default({"method": 8.0, "function": 1.0})
    if inverted and seen.pattern and fill == NEG_INF:
        seen.note_contract(b)
    else:
        _note_fill(b, scores, drop, "drop", fill)
    return b.op("masked_fill", scores.name, drop, to="scores", value=fill, form=form)


def _view_over_scores(b: Builder, mask: str, scores: str) -> str:
    """A mask over keys, [B, T], as [B, 1, 1, T]."""
    batch, key = b.shape(mask)
    return b.op("view", mask, sizes=(batch, *(ONE,) * (b.rank(scores) - 2), key))


def _fill_where_zero(b: Builder, c: Choices, scores: Scores) -> str:
    """As in DistilBERT: a mask with a number for each key, compared with 0, viewed and expanded; the rest is -inf."""
    batch, *_, key = full = b.shape(scores.name)
    dtype = c.draw({"int64": 5.0, "bool": 2.0, "float32": 1.0, "uint8": 0.5} | {b.dtype: 4.0})
    counts = {**_COUNTS, "signed": 0.0} if dtype == "uint8" else _COUNTS
    values = _draw_values(c, _PADDING, 0.7) if dtype == "bool" else _draw_values(c, counts)
    mask = b.input("mask", (batch, key), values, dtype)
    number = c.choose_default({0: 8.0, 1: 1.0})
    drop = b.op(c.choose_default({"eq": 6.0, "ne": 1.0, "gt": 0.5}), mask, to="drop", other=number)
    drop = _view_over_scores(b, drop, scores.name)
    expand = c.choose("mask.expand", {"expand_as": 4.0, "expand": 2.0, "broadcast": 3.0})
    if expand != "broadcast":
        drop = b.op("expand_as", drop, scores.name) if expand == "expand_as" else b.op("expand", drop, sizes=full)
    fill = c.choose("mask.fill", _EQUAL_0_FILLS)
    _note_fill(b, scores, drop, "drop", fill)
    return b.op("masked_fill", scores.name, drop, to="scores", value=fill)


def _where(b: Builder, c: Choices, scores: Scores) -> str:
    seen = _draw_keep(b, c, scores.name, scores.pattern)
    fill = _draw_fill(b, c, scores)
    reverse = c.deviates() and c.chance(0.5) and not scores.pattern
    if seen.pattern and fill == NEG_INF and not reverse:
        seen.note_contract(b)
    else:
        _note_fill(b, scores, seen.value, "drop" if reverse else "keep", fill)
    if c.choose("mask.low", {"full": 6.0, "number": 4.0}) == "full":
        low = b.op("full", to="low", sizes=(), value=fill, dtype=b.dtype_of(scores.name))
        return b.op("where", seen.value, *((low, scores.name) if reverse else (scores.name, low)), to="scores")
    return b.op("where", seen.value, scores.name, to="scores", other=fill, reverse=reverse)


def _where_and_add(b: Builder, c: Choices, scores: Scores) -> str:
    first = _where(b, c, scores)
    return b.op("add", first, additive_input(b, c, draw_shape(c, b.shape(scores.name))), to="scores")


def _add_scaled_padding(b: Builder, c: Choices, scores: Scores) -> str:
    """As in BERT: (1 - padding) * a large negative number, broadcast over heads and queries, added."""
    batch, *_, key = b.shape(scores.name)
    values = _draw_values(c, {"zero_one": 4.0, "small_counts": 1.0})
    mask = b.freeze(c, b.input("padding", (batch, key), values, b.dtype_of(scores.name)))
    masked = b.op("sub", _view_over_scores(b, mask, scores.name), other=1.0, reverse=True, to="masked")
    low = b.op("mul", masked, other=c.pick((-1e4, -3e4)), to="bias")
    b.note_contract(bias=low)
    return b.op("add", scores.name, low, to="scores")


MASKS: Mapping[str, MaskKind] = {
    "none": MaskKind(34, lambda _b, _c, scores: scores.name),
    "add": MaskKind(24, _add_mask, 2.0),
    "equal_0": MaskKind(8, _fill_where_zero),
    "fill": MaskKind(12, _fill_masked, 4.0),
    "where": MaskKind(12, _where, 3.0),
    "where_and_add": MaskKind(5, _where_and_add, 1.0),
    "scaled_padding": MaskKind(4, _add_scaled_padding),
}
"""The kinds of mask; a new kind is a row. Draws depend on the order."""
