"""The dtypes a case may use, their promotion, and the numbers of an input.

Promotion follows https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc:
tensors with dimensions first, then 0-d tensors, then Python numbers. A later kind decides only if its category is
higher.

The numbers of an input are a named distribution: a readable torch expression. Inputs matter more than tolerances:
uniform(-.05, .05) hides bugs that an outlier or a peaked row shows at once.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from generators.program.kept_places import OF_QUERIES, PATTERNS, SPELLINGS, Pattern, Spelling

FLOATS = ("float32", "bfloat16", "float16", "float64")
LOW_PRECISION = ("bfloat16", "float16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
COMPLEX = "complex64"  # a dtype of results only

LOWEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "float16": -65504.0}
LOWEST |= {"float64": -1.7976931348623157e308}
"""The lowest finite number of each floating dtype."""
RANGES = {"bool": (0, 1), "uint8": (0, 255)}
RANGES |= {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
"""The least and the largest number of each dtype without fractions."""
_BY_WIDTH = ("bool", *INTEGERS, *LOW_PRECISION, "float32", "float64", COMPLEX)


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    if dtype in ("bool", COMPLEX):
        return 0 if dtype == "bool" else 3
    return 2 if dtype in FLOATS else 1


def _wider(a: str, b: str) -> str:
    if a != b and {a, b} == set(LOW_PRECISION):
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return max(a, b, key=_BY_WIDTH.index)


def promote(tensors: Iterable[tuple[str, int]], numbers: Iterable[bool | int | float] = ()) -> str:
    """The result dtype of an elementwise operation over tensors, given as (dtype, rank), and Python numbers."""
    values = list(tensors)
    levels = [
        [dtype for dtype, rank in values if rank],
        [dtype for dtype, rank in values if not rank],
        ["bool" if isinstance(n, bool) else "int64" if isinstance(n, int) else "float32" for n in numbers],
    ]
    widest = [reduce(_wider, level) for level in levels if level]
    # max keeps the first of equal categories.
    return max(widest, key=category, default="float32")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A named way to fill a tensor."""

    name: str
    rank: int  # the place in the order of simplicity, 0 simplest
    dtypes: tuple[str, ...]
    native: str  # the dtype of the expression
    template: str
    """The torch expression. `{shape}` is the text of a tuple, `{times}` multiplies with the scale, `{width}` is the
    parameter, and `{seed1}` and `{seed2}` follow `{seed}`."""
    min_rank: int = 0
    param: str = ""  # the meaning of the parameter; "" if it has none
    default: int = 0  # the parameter where 0 is given
    chooses_place: bool = False  # whether it needs at least one element
    stop: Callable[[int, int, int], int] | None = None
    """Of indices: the number that they stay below, by the scale, the parameter and the length of the last axis."""

    @property
    def scaled(self) -> bool:
        return any(word in self.template for word in ("{scale}", "{times}", "{count}"))

    def expression(self, shape: str, seed: int, scale: float, param: float = 0.0) -> str:
        """The torch expression; `shape` is the text of a tuple."""
        count, width = int(scale) if math.isfinite(scale) else 0, int(param) or self.default
        words = {"seed": str(seed), "seed1": str(seed + 1), "seed2": str(seed + 2), "scale": number(scale)}
        words |= {"times": "" if scale == 1.0 else f" * {scale!r}", "kept": repr(param if 0 < param < 1 else _KEPT)}
        words |= {"count": str(count), "width": str(width), "past": str(max(count, width + 1))}
        # No id is the padding id, if that is one of them.
        ids = (width + 1, width + count) if 0 <= width < count > 1 else (0, max(count, 1))
        words |= {
            "ids": f"{_draw_integers(*ids, 'seed1')}{f' % {count}' if ids[0] else ''}".format(shape=shape, **words)
        }
        template = _CONSTANT.get((self.name, scale), self.template)
        return template.format(shape=shape, **words, **_name_parts(shape))


def number(value: float) -> str:
    """A number as Python source; infinities and NaN as `float("inf")`."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _name_parts(shape: str) -> dict[str, str]:
    """The words that templates have for axes and parts of a shape."""
    axes = [size for size in shape[1:-1].rstrip(",").split(", ") if size]
    queries, keys = (f"({size})" if " " in size else size for size in ["1", "1", *axes][-2:])
    items = [axes[0], *["1"] * (len(axes) - 3)] if len(axes) > 2 else []
    parts = {
        "items": [*items, "1", "1"][-len(axes) :],
        "item_keys": [*items, "1", keys][-len(axes) :],
        "item_queries": [*items, queries, "1"][-len(axes) :],
        "item_longest": [*items, queries if queries == keys else f"max({queries}, {keys})"],
        "rows": [*axes[:-1], "1"],
        "pairs": [*axes[:-1], "2"],
        "leading": axes[:-1],
        "first": ["1", *axes[1:]],
    }
    texts = {name: f"({', '.join(sizes)}{',' * (len(sizes) == 1)})" for name, sizes in parts.items()}
    return {**texts, "queries": queries, "keys": keys}


_KEPT = 0.7  # the share that random masks keep where none is given
_RANDN = "torch.randn({shape}, generator=rng({seed}))"
_RAND = "torch.rand({shape}, generator=rng({seed}))"
# N(0, 1) with about 2 % from N(0, 100), as in FlashAttention-3's accuracy experiment.
_OUTLIERS = (
    f"{_RANDN} + {{scale}} * torch.randn({{shape}}, generator=rng({{seed1}}))"
    " * (torch.rand({shape}, generator=rng({seed2})) < 0.02)"
)
# One position along the second-last axis dominates.
_ONE_ROW = f"{_RANDN} * torch.where(torch.arange({{shape}}[-2]) == {{seed}} % {{shape}}[-2], {{scale}}, 1.0)[:, None]"
# A few channels are massive in every row, as in the activations of language models (arXiv:2402.17762).
_CHANNELS = f"{_RANDN} * torch.where(torch.rand({{shape}}[-1:], generator=rng({{seed1}})) < 0.05, {{scale}}, 1.0)"
# Rows of a few distinct ones.
_REPEATED = (
    "torch.randn(({width}, {keys}), generator=rng({seed}))"
    "[torch.randint(0, {width}, {leading}, generator=rng({seed1}))]{times}"
)
_EQUAL_ITEMS = "torch.randn({first}, generator=rng({seed})).expand({shape}).contiguous(){times}"
_ONES, _ZEROS = (f"torch.{which}({{shape}}, dtype=torch.bool)" for which in ("ones", "zeros"))
_CONSTANT = {("random", 1.0): _ONES, ("random", 0.0): _ZEROS}
# Consecutive numbers from the scale on.
_POSITIONS = "torch.arange({count}, {count} + {shape}[-1]).expand({shape})"
# From 0 to the scale, with the ends of random lengths between.
_CUMULATIVE = (
    "torch.where(torch.arange({keys}) == 0, 0, torch.where(torch.arange({keys}) == {keys} - 1, {count}, "
    "torch.randint(0, {count} + 1, {shape}, generator=rng({seed})).sort(-1).values))"
)
# Each document has positions of its own.
_PACKED = (
    "(lambda d: (d[..., None] == d[..., None, :]).tril().sum(-1) - 1)"
    "(torch.randint(0, {width}, {shape}, generator=rng({seed})).sort(-1).values)"
)


def _draw_integers(least: int | str, stop: int | str, seed: str = "seed") -> str:
    return f"torch.randint({least}, {stop}, {{shape}}, generator=rng({{{seed}}}))"


def _keep(pattern: str) -> str:
    return PATTERNS[pattern].text


def _count_kept(padding: str) -> str:
    return f"(lambda keep: torch.where(keep, {{count}} + keep.cumsum(-1) - 1, {{width}}))({_keep(padding)})"


_NUMBERS = (*FLOATS, *INTEGERS)
_INDEX = ("int64", "int32")
_RANKS = {"random": 0, "ones": 1, "zeros": 2, "causal": 3, "padding": 4, "empty_row": 5, "causal_mask": 6}
_RANKS |= {"padding_mask": 7, "random_mask": 8, "empty_row_mask": 9, "left_padding_mask": 17, "left_padding": 18}
LATER = 20  # the rank of kinds that are tried last


def _spell(pattern: Pattern, spelling: Spelling) -> Distribution:
    name = pattern.name + spelling.suffix
    text = pattern.text.replace("{share}", "{kept}" if spelling.low else "{scale}")
    return Distribution(
        name,
        _RANKS.get(name, LATER + len(pattern.parts)),
        {"bool": ("bool",), "numbers": _NUMBERS, "floats": FLOATS}[spelling.kinds],
        "float32" if spelling.low else "bool",
        spelling.text.replace("{keep}", text),
        pattern.min_rank,
        pattern.param.param,
        pattern.param.default,
        pattern.chooses_place,
    )


def _below_scale(scale: int, _param: int, _length: int) -> int:
    return scale


def _below_last(scale: int, param: int, length: int) -> int:
    return max(scale + length, param + 1)


DISTRIBUTIONS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution("normal", 0, FLOATS, "float32", f"{_RANDN}{{times}}"),
        Distribution("constant", 1, _NUMBERS, "float32", "torch.full({shape}, {scale})"),
        Distribution("uniform", 2, FLOATS, "float32", f"({_RAND} - 0.5){{times}}"),
        Distribution("integers", 3, FLOATS, "float32", f"{_draw_integers(-3, 4)}.float()"),
        Distribution("outliers", 4, FLOATS, "float32", _OUTLIERS),
        Distribution("one_row", 5, FLOATS, "float32", _ONE_ROW, min_rank=2, chooses_place=True),
        Distribution("channels", 16, FLOATS, "float32", _CHANNELS, min_rank=1),
        Distribution("repeated_rows", LATER, FLOATS, "float32", _REPEATED, 2, "the most distinct rows", 1),
        Distribution("equal_items", LATER, FLOATS, "float32", _EQUAL_ITEMS, 2),
        *(
            Distribution(name, LATER, FLOATS, "float32", f"{_RANDN}{{times}} * ({text})", 2, chooses_place=True)
            for name, text in (("zero_tail", OF_QUERIES[0].text), ("zero_head", OF_QUERIES[1].text))
        ),
        *(_spell(pattern, spelling) for pattern in PATTERNS.values() for spelling in SPELLINGS),
        Distribution("zero_one", 10, _NUMBERS, "int64", _draw_integers(0, 2)),
        Distribution("small_counts", 11, _NUMBERS, "int64", _draw_integers(0, 3)),
        Distribution("signed", 12, (*FLOATS, *INTEGERS[1:]), "int64", _draw_integers(-2, 3)),
        Distribution("between", LATER, INTEGERS, "int64", _draw_integers("{width}", "{past}"), 0, "the least number"),
        Distribution("tokens", 13, _INDEX, "int64", _draw_integers(0, "{count}"), stop=_below_scale),
        Distribution("positions", 14, _INDEX, "int64", _POSITIONS, 1, stop=lambda first, _, length: first + length),
        Distribution(
            "permutation", 15, (*_INDEX, "float32"), "int64", f"{_RAND}.argsort(-1)", 1, stop=lambda *sizes: sizes[-1]
        ),
        Distribution("sorted_tokens", LATER, _INDEX, "int64", f"{_draw_integers(0, '{count}')}.sort(-1).values", 1,
                     stop=_below_scale),
        Distribution("lengths", LATER, _INDEX, "int64", "1 + " + _draw_integers(0, "max({count} - 1, 1)"),
                     stop=_below_scale),
        Distribution("cumulative_lengths", LATER, _INDEX, "int64", _CUMULATIVE, 1,
                     stop=lambda total, *_: total + 1),
        Distribution("packed_positions", LATER, _INDEX, "int64", _PACKED, 1, "the most documents", 3,
                     stop=lambda *sizes: sizes[-1]),
        Distribution("offset_positions", LATER, _INDEX, "int64",
                     "torch.arange({keys}) + torch.randint(0, {count}, {rows}, generator=rng({seed}))", 1,
                     stop=lambda starts, _, length: starts - 1 + length),
        *(
            Distribution(f"{side}padded_{what}", LATER, _INDEX, "int64", template, 1, "the number at padding", 0, True,
                         _below_last if what == "positions" else lambda count, padding, _: max(count, padding + 1))
            for side in ("", "left_")
            for what, template in (
                ("tokens", f"torch.where({_keep(f'{side}padding')}, {{ids}}, {{width}})"),
                ("positions", _count_kept(f"{side}padding")),
            )
        ),
    )
}  # fmt: skip
LARGE = 100.0  # a scale from which on the numbers of an input are called large
INDICES = tuple(d.name for d in DISTRIBUTIONS.values() if d.stop)
"""Distributions of indices, whose numbers have to exist as places."""


class MemoryLayout(NamedTuple):
    """How an input lies in memory."""

    min_rank: int  # the fewest axes
    rank: int  # the place in the order of simplicity, 0 simplest
    template: str
    """The torch expression that lays out the tensor `{x}`. `{zeros}` are paddings of 0 for all axes but the first."""


LAYOUTS = {
    "contiguous": MemoryLayout(0, 0, "{x}"),
    "transposed": MemoryLayout(2, 1, "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)"),
    "heads_inner": MemoryLayout(3, 2, "{x}.transpose(-2, -3).contiguous().transpose(-2, -3)"),
    "padded": MemoryLayout(1, 3, "F.pad({x}, (0, 3))[..., :-3]"),
    "every_second": MemoryLayout(1, 4, "{x}.repeat_interleave(2, -1)[..., ::2]"),
    "offset": MemoryLayout(1, 5, "F.pad({x}, ({zeros}1, 0))[1:]"),
    "channels_last": MemoryLayout(3, 7, "{x}.movedim(1, -1).contiguous().movedim(-1, 1)"),
    # Stride 0 along the first axis.
    "expanded": MemoryLayout(2, 6, "(lambda x: x[:1].expand_as(x))({x})"),
}
