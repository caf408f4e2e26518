"""The dtypes a case may use, their promotion, and the numbers of an input.

Promotion follows https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc:
tensors with dimensions first, then 0-d tensors, then Python numbers. A later kind decides only if its category is
higher.

The numbers of an input are a named distribution: a readable torch expression. Inputs matter more than tolerances:
uniform(-.05, .05) hides bugs that an outlier or a peaked row shows at once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

FLOATS = ("float32", "bfloat16", "float16", "float64")
LOW_PRECISION = ("bfloat16", "float16")
INTEGERS = ("uint8", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
COMPLEX = "complex64"  # a dtype of results only

LOWEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "float16": -65504.0}
LOWEST |= {"float64": -1.7976931348623157e308}
"""The lowest finite number of each floating dtype."""
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2.0**-52}
"""The distance from 1 to the next number of each floating dtype."""
_BY_WIDTH = ("bool", *INTEGERS, *LOW_PRECISION, "float32", "float64", COMPLEX)


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    if dtype in ("bool", COMPLEX):
        return 0 if dtype == "bool" else 3
    return 2 if dtype in FLOATS else 1


def _wider(a: str, b: str) -> str:
    if a != b and {a, b} == set(LOW_PRECISION):
        return "float32"
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
    """The torch expression. `{shape}` is the text of a tuple, `{times}` multiplies with the scale, and `{seed1}` and
    `{seed2}` follow `{seed}`."""
    min_rank: int = 0

    @property
    def scaled(self) -> bool:
        return any(word in self.template for word in ("{scale}", "{times}", "{count}"))

    def expression(self, shape: str, seed: int, scale: float) -> str:
        """The torch expression; `shape` is the text of a tuple."""
        times = "" if scale == 1.0 else f" * {scale!r}"
        words = {"seed": seed, "seed1": seed + 1, "seed2": seed + 2, "scale": number(scale), "times": times}
        template = _CONSTANT.get((self.name, scale), self.template)
        return template.format(shape=shape, count=int(scale) if math.isfinite(scale) else "", **words)


def number(value: float) -> str:
    """A float as Python source; the infinities as `float("inf")`."""
    return f'float("{value}")' if value in (math.inf, -math.inf) else repr(value)


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
_ONES, _ZEROS = (f"torch.{which}({{shape}}, dtype=torch.bool)" for which in ("ones", "zeros"))
_CONSTANT = {("random", 1.0): _ONES, ("random", 0.0): _ZEROS}
# Every row keeps its first key, and drops a tail of keys of random length.
_PADDING = "torch.arange({shape}[-1]) < torch.randint(1, {shape}[-1] + 1, {shape}[:-1] + (1,), generator=rng({seed}))"
# Every row keeps its last key, and drops keys before a random place, as in batches of prompts of several lengths.
_LEFT = "torch.arange({shape}[-1]) >= torch.randint(0, {shape}[-1], {shape}[:-1] + (1,), generator=rng({seed}))"
# Some rows keep no key at all.
_EMPTY_ROW = f"({_RAND} < {{scale}}) & (torch.rand({{shape}}[:-1] + (1,), generator=rng({{seed1}})) < 0.6)"
# Consecutive numbers from the scale on.
_POSITIONS = "torch.arange({count}, {count} + {shape}[-1]).expand({shape})"


def _draw_integers(least: int, stop: int | str) -> str:
    return f"torch.randint({least}, {stop}, {{shape}}, generator=rng({{seed}}))"


def _mask(keep: str) -> str:
    return f"torch.where({keep.replace('{scale}', '0.7')}, 0.0, {{scale}})"


_NUMBERS = (*FLOATS, *INTEGERS)
DISTRIBUTIONS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution("normal", 0, FLOATS, "float32", f"{_RANDN}{{times}}"),
        Distribution("constant", 1, FLOATS, "float32", "torch.full({shape}, {scale})"),
        Distribution("uniform", 2, FLOATS, "float32", f"({_RAND} - 0.5){{times}}"),
        Distribution("integers", 3, FLOATS, "float32", f"{_draw_integers(-3, 4)}.float()"),
        Distribution("outliers", 4, FLOATS, "float32", _OUTLIERS),
        Distribution("one_row", 5, FLOATS, "float32", _ONE_ROW, min_rank=2),
        Distribution("channels", 16, FLOATS, "float32", _CHANNELS, min_rank=1),
        Distribution("causal_mask", 6, FLOATS, "float32", _mask(f"{_ONES}.tril()"), min_rank=2),
        Distribution("padding_mask", 7, FLOATS, "float32", _mask(_PADDING), min_rank=1),
        Distribution("random_mask", 8, FLOATS, "float32", _mask(f"{_RAND} < {{scale}}")),
        Distribution("empty_row_mask", 9, FLOATS, "float32", _mask(_EMPTY_ROW), min_rank=1),
        Distribution("left_padding_mask", 17, FLOATS, "float32", _mask(_LEFT), min_rank=1),
        Distribution("random", 0, ("bool",), "bool", f"{_RAND} < {{scale}}"),
        Distribution("ones", 1, ("bool",), "bool", _ONES),
        Distribution("zeros", 2, ("bool",), "bool", _ZEROS),
        Distribution("causal", 3, ("bool",), "bool", f"{_ONES}.tril()", min_rank=2),
        Distribution("padding", 4, ("bool",), "bool", _PADDING, min_rank=1),
        Distribution("left_padding", 18, ("bool",), "bool", _LEFT, min_rank=1),
        Distribution("empty_row", 5, ("bool",), "bool", _EMPTY_ROW, min_rank=1),
        Distribution("zero_one", 10, _NUMBERS, "int64", _draw_integers(0, 2)),
        Distribution("small_counts", 11, _NUMBERS, "int64", _draw_integers(0, 3)),
        Distribution("signed", 12, (*FLOATS, *INTEGERS[1:]), "int64", _draw_integers(-2, 3)),
        Distribution("tokens", 13, ("int64", "int32"), "int64", _draw_integers(0, "{count}")),
        Distribution("positions", 14, ("int64", "int32"), "int64", _POSITIONS, min_rank=1),
        Distribution("permutation", 15, ("int64", "float32"), "int64", f"{_RAND}.argsort(-1)", min_rank=1),
    )
}
LARGE = 100.0  # a scale from which on the numbers of an input are called large
INDICES = ("tokens", "positions", "permutation")  # distributions of indices, whose numbers have to exist as places


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
    # Stride 0 along the first axis.
    "expanded": MemoryLayout(2, 6, "(lambda x: x[:1].expand_as(x))({x})"),
}
