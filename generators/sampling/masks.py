"""Masks: every spelling, every shape and dtype that eager accepts, every value that callers pass."""

from dataclasses import dataclass

from generators.program.case import Values
from generators.program.dtypes import LOWEST
from generators.program.sizes import Size
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices
from generators.sampling.heads import draw_layout


@dataclass(frozen=True, slots=True)
class Pattern:
    """`causal` and `window` of a Contract. Without either, every key is seen."""

    causal: str | None = None
    window: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        """Whether it hides anything."""
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
_KINDS = {"none": 34, "add": 24, "equal_0": 8, "fill": 12, "where": 12, "where_and_add": 5, "scaled_padding": 4}
_PATTERN_KINDS = {"fill": 4.0, "where": 3.0, "add": 2.0, "where_and_add": 1.0}


@dataclass(frozen=True, slots=True)
class _KeepMask:
    """A boolean value, True where a key is kept; the pattern in it, and the mask it is joined with, if any."""

    value: str
    pattern: Pattern = NO_PATTERN
    mask: str | None = None

    def say(self, b: Builder) -> None:
        """Note that all that is not seen is gone for good: -inf."""
        b.say(mask=self.mask, causal=self.pattern.causal, window=self.pattern.window)


def apply_mask(b: Builder, c: Choices, scores: str, pattern: Pattern) -> str:
    """Mask `scores`, [B, H, S, T] or [B, S, T], by the pattern, or without one in some way, or not at all."""
    in_place = b.may_overwrite(scores) and c.deviates()
    kind = c.draw(_PATTERN_KINDS) if pattern else c.choose("mask.kind", _KINDS)
    if kind == "add":
        return _add_mask(b, c, scores, pattern, in_place=in_place)
    if kind == "scaled_padding":
        return _add_scaled_padding(b, c, scores)
    if kind == "equal_0":
        return _fill_where_zero(b, c, scores)
    if kind == "fill":
        return _fill_masked(b, c, scores, pattern, in_place=in_place)
    if kind == "where":
        return _where(b, c, scores, pattern)
    if kind == "where_and_add":
        first = _where(b, c, scores, pattern)
        return b.op("add", first, additive_input(b, c, draw_shape(c, b.shape(scores))), to="scores")
    return scores


def draw_shape(c: Choices, full: tuple[Size, ...], least: int = 1) -> tuple[Size, ...]:
    """A shape that broadcasts to `full`, that of scores: a usual one, or any axis 1 and any leading axes left out, but
    for `least`."""
    one = Size.of(1)
    batch, query, key = full[:-2], full[-2], full[-1]
    shapes: dict[str, tuple[Size, ...]] = {
        "square": (query, key),
        "ones": (*(one,) * len(batch), query, key),
        "batch": (batch[0], *(one,) * (len(batch) - 1), query, key),
        "keys": (batch[0], *(one,) * len(batch), key),
        "full": full,
    }
    form = c.choose("mask.shape", {"square": 3.0, "ones": 4.0, "batch": 3.0, "keys": 4.0, "full": 2.0, "any": 4.0})
    if form == "any":
        shape = tuple(one if c.chance(0.4) else s for s in full)
        return shape[c.below(len(shape) + 1 - least) :]
    return shapes[form]


def additive_input(b: Builder, c: Choices, shape: tuple[Size, ...], dtype: str = "") -> str:
    """A mask to be added, of this dtype or any."""
    dtype = dtype or c.choose_default(
        {"float32": 4.0, "bool": 2.5, "int64": 1.0, "float16": 0.3, "bfloat16": 0.3} | {b.dtype: 10.0}
    )
    if dtype == "bool":
        values = Values(c.draw({"random": 4.0, "ones": 1.0, "zeros": 1.0}), scale=0.6)
    elif dtype == "int64":
        values = Values(c.pick(("zero_one", "small_counts", "signed")))
    else:
        values = _additive_values(c, len(shape))
    mask = b.freeze(c, b.input("mask", shape, values, dtype, draw_layout(c, len(shape))))
    b.say(bias=mask)
    b.deny_unless(b.is_float(mask))
    return mask


def _additive_values(c: Choices, rank: int) -> Values:
    kind = c.draw(
        {
            "normal": 4.0,
            "random_mask": 3.0,
            "causal_mask": 2.0 if rank >= 2 else 0.0,
            "padding_mask": 2.0,
            "empty_row_mask": 2.0,
            "zero_one": 0.5,
            "constant": 0.5,
        }
    )
    scale = c.pick((1.0, 1.0, 3.0, 0.1))
    if kind.endswith("mask"):
        # -3e4 still fits float16; an empty row with -inf is NaN by design, so finite fills are drawn more.
        scale = c.draw({NEG_INF: 3.0, -3e4: 3.0, -1e4: 2.0, -100.0: 1.0, -1.0: 1.0})
        if kind == "empty_row_mask" and c.chance(0.7):
            scale = -3e4
    return Values(kind, scale=scale)


def _add_mask(b: Builder, c: Choices, scores: str, pattern: Pattern, *, in_place: bool) -> str:
    if pattern or c.choose("mask.from", {"given": 3.0, "made": 1.0}) == "made":
        return _add_pattern(b, c, scores, pattern)
    mask = additive_input(b, c, draw_shape(c, b.shape(scores)))
    if c.deviates():
        return b.op("add", mask, scores, to="scores")
    fits = in_place and b.dtype_of(mask) == b.dtype_of(scores)
    form = "in_place" if fits else c.choose_default({"operator": 8.0, "method": 1.0, "function": 1.0})
    alpha = c.choose_default({1: 8.0, 2: 1.0, 0.5: 1.0, -1: 1.0})
    b.deny_unless(alpha == 1)
    return b.op("add", scores, mask, to="scores", form=form, alpha=alpha)


def _add_pattern(b: Builder, c: Choices, scores: str, pattern: Pattern) -> str:
    """A tensor of zeros and low numbers, made inside and added: by the pattern, or causal from the first key."""
    query, key = b.shape(scores)[-2:]
    if not pattern and c.choose("mask.triangle", {"triu": 1.0, "keep": 1.0}) == "triu":
        low = c.draw({NEG_INF: 3.0, -1e4: 1.0})
        full = b.op("full", to="causal", sizes=(query, key), value=low, dtype=b.dtype_of(scores))
        bias = b.op("triu", full, diagonal=1)
        b.say(**({"causal": "top_left"} if low == NEG_INF else {"bias": bias}))
        return b.op("add", scores, bias, to="scores")
    seen = _draw_keep(b, c, scores, pattern or _TOP_LEFT)
    if c.chance(0.3):
        bias = b.op("where", seen.value, to="bias", value=0.0, other=NEG_INF)
    else:
        zeros = b.op("full", to="bias", sizes=b.shape(seen.value), value=0.0, dtype=b.dtype_of(scores))
        bias = b.op("masked_fill", zeros, b.op("logical_not", seen.value), to="bias", value=NEG_INF)
    seen.say(b)
    return b.op("add", scores, bias, to="scores")


def boolean_input(b: Builder, c: Choices, shape: tuple[Size, ...]) -> str:
    """A mask of the keys to be kept."""
    kinds = {
        "random": 4.0,
        "padding": 2.0,
        "empty_row": 2.5,
        "ones": 0.7,
        "zeros": 0.4,
        "causal": 2.0 if len(shape) >= 2 else 0.0,
    }
    return b.input("keep", shape, Values(c.draw(kinds), scale=0.7), "bool", draw_layout(c, len(shape)))


def _draw_keep(b: Builder, c: Choices, scores: str, pattern: Pattern) -> _KeepMask:
    """Which keys are kept: those of the pattern, now and then joined with a caller's mask; or one of these alone."""
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
        seen = b.op("view", seen, sizes=(Size.of(1), Size.of(1), query, key))
    if alone or c.chance(0.75):
        return _KeepMask(seen, shown)
    mask = boolean_input(b, c, draw_shape(c, b.shape(scores)))
    return _KeepMask(b.op("logical_and", *c.pick(((seen, mask), (mask, seen))), to="keep"), shown, mask)


def _fill_value(fill: float | str, b: Builder, value: str) -> float:
    return LOWEST[b.dtype_of(value)] if isinstance(fill, str) else fill


def _fill(b: Builder, c: Choices, scores: str, pattern: Pattern) -> float | str:
    # Only -inf hides a key for good, which is what a contract says of patterns.
    if pattern and c.chance(0.8):
        return NEG_INF
    fill = c.choose("mask.fill", _FILLS)
    return -1e4 if fill == -1e9 and b.dtype_of(scores) == "float16" else fill


def _fill_masked(b: Builder, c: Choices, scores: str, pattern: Pattern, *, in_place: bool) -> str:
    seen = _draw_keep(b, c, scores, pattern)
    # A caller's mask may as well say which keys to drop, and so may a triangle.
    inverted = bool(pattern) or c.chance(0.6)
    drop = seen.value
    if inverted:
        drop = b.op("logical_not", drop, to="drop")
    if c.chance(0.3):
        drop = b.op("expand_as", drop, scores)
    fill = _fill(b, c, scores, pattern)
    form = "in_place" if in_place and b.may_overwrite(scores) else c.choose_default({"method": 8.0, "function": 1.0})
    if inverted and seen.pattern and fill == NEG_INF:
        seen.say(b)
    else:
        b.say(mask=drop, mask_means="drop", fill=_fill_value(fill, b, scores))
    return b.op("masked_fill", scores, drop, to="scores", value=fill, form=form)


def _fill_where_zero(b: Builder, c: Choices, scores: str) -> str:
    """As DistilBERT does: a mask of one number a key, compared with 0, viewed and expanded, the rest -inf."""
    batch, *_, key = b.shape(scores)
    dtype = c.draw({"int64": 5.0, "bool": 2.0, "float32": 1.0, "uint8": 0.5} | {b.dtype: 4.0})
    if dtype == "bool":
        values = Values(c.pick(("random", "padding", "ones")), scale=0.7)
    else:
        values = Values(c.draw({"zero_one": 4.0, "small_counts": 3.0, "signed": 0.0 if dtype == "uint8" else 2.0}))
    mask = b.input("mask", (batch, key), values, dtype)
    number = c.choose_default({0: 8.0, 1: 1.0})
    drop = b.op(c.choose_default({"eq": 6.0, "ne": 1.0, "gt": 0.5}), mask, to="drop", other=number)
    shape = (batch, *(Size.of(1),) * (b.rank(scores) - 2), key)
    drop = b.op("view", drop, sizes=shape)
    expand = c.choose("mask.expand", {"expand_as": 4.0, "expand": 2.0, "broadcast": 3.0})
    if expand != "broadcast":
        drop = b.op("expand_as", drop, scores) if expand == "expand_as" else b.op("expand", drop, sizes=b.shape(scores))
    fill = c.choose("mask.fill", _EQUAL_0_FILLS)
    b.say(mask=drop, mask_means="drop", fill=_fill_value(fill, b, scores))
    return b.op("masked_fill", scores, drop, to="scores", value=fill)


def _where(b: Builder, c: Choices, scores: str, pattern: Pattern) -> str:
    seen = _draw_keep(b, c, scores, pattern)
    keep = seen.value
    fill = _fill(b, c, scores, pattern)
    reverse = c.deviates() and c.chance(0.5) and not pattern
    if seen.pattern and fill == NEG_INF and not reverse:
        seen.say(b)
    else:
        b.say(mask=keep, mask_means="drop" if reverse else "keep", fill=_fill_value(fill, b, scores))
    if c.choose("mask.low", {"full": 6.0, "number": 4.0}) == "full":
        low = b.op("full", to="low", sizes=(), value=fill, dtype=b.dtype_of(scores))
        return b.op("where", keep, *((low, scores) if reverse else (scores, low)), to="scores")
    return b.op("where", keep, scores, to="scores", other=fill, reverse=reverse)


def _add_scaled_padding(b: Builder, c: Choices, scores: str) -> str:
    """As BERT does: (1 - padding) * a large negative number, broadcast over heads and queries, added."""
    batch, *_, key = b.shape(scores)
    kind = c.draw({"zero_one": 4.0, "small_counts": 1.0})
    mask = b.freeze(c, b.input("padding", (batch, key), Values(kind), b.dtype_of(scores)))
    view = b.op("view", mask, sizes=(batch, *(Size.of(1),) * (b.rank(scores) - 2), key))
    low = b.op("mul", b.op("sub", view, other=1.0, reverse=True, to="masked"), other=c.pick((-1e4, -3e4)), to="bias")
    b.say(bias=low)
    return b.op("add", scores, low, to="scores")
