"""What the numbers of an input are: named distributions, each a readable torch expression.

Inputs matter more than tolerances: uniform(-.05, .05) hides what an outlier or a peaked row shows at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

from generators.program.dtypes import FLOATS, INTEGERS

ExpressionOf = Callable[[str, int, float], str]


@dataclass(frozen=True, slots=True)
class Distribution:
    """One named way to fill a tensor.

    `expression(shape, seed, scale)` is the torch expression; `shape` is the text of a tuple. `native` is the dtype
    that expression has. `dtypes` are those it makes sense for. `rank` is where it stands in simplicity, 0 simplest.
    """

    name: str
    rank: int
    dtypes: tuple[str, ...]
    native: str
    expression: ExpressionOf
    scaled: bool = False
    min_rank: int = 0


def _randn(shape: str, seed: int) -> str:
    return f"torch.randn({shape}, generator=rng({seed}))"


def _rand(shape: str, seed: int) -> str:
    return f"torch.rand({shape}, generator=rng({seed}))"


def _times(text: str, scale: float) -> str:
    return text if scale == 1.0 else f"{text} * {scale!r}"


def _normal(shape: str, seed: int, scale: float) -> str:
    return _times(_randn(shape, seed), scale)


def _uniform(shape: str, seed: int, scale: float) -> str:
    return _times(f"({_rand(shape, seed)} - 0.5)", scale)


def _constant(shape: str, _seed: int, scale: float) -> str:
    return f"torch.full({shape}, {scale!r})"


def _integers(shape: str, seed: int, _scale: float) -> str:
    return f"torch.randint(-3, 4, {shape}, generator=rng({seed})).float()"


def _outliers(shape: str, seed: int, scale: float) -> str:
    # N(0, 1) with about one in fifty from N(0, 100), as in FlashAttention-3's accuracy experiment.
    spikes = f"{_randn(shape, seed + 1)} * ({_rand(shape, seed + 2)} < 0.02)"
    return f"{_randn(shape, seed)} + {scale!r} * {spikes}"


def _one_row(shape: str, seed: int, scale: float) -> str:
    # One position along the second-last axis dominates.
    chosen = f"torch.arange({shape}[-2]) == {seed} % {shape}[-2]"
    return f"{_randn(shape, seed)} * torch.where({chosen}, {scale!r}, 1.0)[:, None]"


def _random_bool(shape: str, seed: int, scale: float) -> str:
    return f"{_rand(shape, seed)} < {scale!r}"


def _ones(shape: str, _seed: int, _scale: float) -> str:
    return f"torch.ones({shape}, dtype=torch.bool)"


def _zeros(shape: str, _seed: int, _scale: float) -> str:
    return f"torch.zeros({shape}, dtype=torch.bool)"


def _causal(shape: str, _seed: int, _scale: float) -> str:
    return f"torch.ones({shape}, dtype=torch.bool).tril()"


def _padding(shape: str, seed: int, _scale: float) -> str:
    # Every row keeps at least its first key; a longer tail of keys is dropped the further a row is.
    return f"torch.arange({shape}[-1]) < torch.randint(1, {shape}[-1] + 1, {shape}[:-1] + (1,), generator=rng({seed}))"


def _empty_row(shape: str, seed: int, scale: float) -> str:
    # Some rows keep no key at all.
    return f"({_rand(shape, seed)} < {scale!r}) & ({_rand(f'{shape}[:-1] + (1,)', seed + 1)} < 0.6)"


def _small_counts(shape: str, seed: int, _scale: float) -> str:
    return f"torch.randint(0, 3, {shape}, generator=rng({seed}))"


def _zero_one(shape: str, seed: int, _scale: float) -> str:
    return f"torch.randint(0, 2, {shape}, generator=rng({seed}))"


def _signed(shape: str, seed: int, _scale: float) -> str:
    return f"torch.randint(-2, 3, {shape}, generator=rng({seed}))"


def _tokens(shape: str, seed: int, scale: float) -> str:
    return f"torch.randint(0, {int(scale)}, {shape}, generator=rng({seed}))"


def _masking(keep: ExpressionOf, share: float) -> ExpressionOf:
    def expression(shape: str, seed: int, scale: float) -> str:
        return f"torch.where({keep(shape, seed, share)}, 0.0, {number(scale)})"

    return expression


def number(value: float) -> str:
    """A float as Python source; the infinities as `float("inf")`."""
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value)


_NUMBERS = (*FLOATS, *INTEGERS)
DISTRIBUTIONS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution("normal", 0, FLOATS, "float32", _normal, scaled=True),
        Distribution("constant", 1, FLOATS, "float32", _constant, scaled=True),
        Distribution("uniform", 2, FLOATS, "float32", _uniform, scaled=True),
        Distribution("integers", 3, FLOATS, "float32", _integers),
        Distribution("outliers", 4, FLOATS, "float32", _outliers, scaled=True),
        Distribution("one_row", 5, FLOATS, "float32", _one_row, scaled=True, min_rank=2),
        Distribution("causal_mask", 6, FLOATS, "float32", _masking(_causal, 1.0), scaled=True, min_rank=2),
        Distribution("padding_mask", 7, FLOATS, "float32", _masking(_padding, 1.0), scaled=True, min_rank=1),
        Distribution("random_mask", 8, FLOATS, "float32", _masking(_random_bool, 0.7), scaled=True),
        Distribution("empty_row_mask", 9, FLOATS, "float32", _masking(_empty_row, 0.7), scaled=True, min_rank=1),
        Distribution("random", 0, ("bool",), "bool", _random_bool, scaled=True),
        Distribution("ones", 1, ("bool",), "bool", _ones),
        Distribution("zeros", 2, ("bool",), "bool", _zeros),
        Distribution("causal", 3, ("bool",), "bool", _causal, min_rank=2),
        Distribution("padding", 4, ("bool",), "bool", _padding, min_rank=1),
        Distribution("empty_row", 5, ("bool",), "bool", _empty_row, scaled=True, min_rank=1),
        Distribution("zero_one", 10, _NUMBERS, "int64", _zero_one),
        Distribution("small_counts", 11, _NUMBERS, "int64", _small_counts),
        Distribution("signed", 12, (*FLOATS, *INTEGERS[1:]), "int64", _signed),
        Distribution("tokens", 13, ("int64", "int32"), "int64", _tokens, scaled=True),
    )
}

LAYOUTS: dict[str, tuple[int, int]] = {
    # name: (least rank, place in simplicity)
    "contiguous": (0, 0),
    "transposed": (2, 1),
    "heads_inner": (3, 2),
    "padded": (1, 3),
    "every_second": (1, 4),
    "offset": (1, 5),
    "channels_last": (3, 6),
}
"""How an input lies in memory; `layout_expression` says what each means."""


def layout_expression(layout: str, tensor: str, rank: int) -> str:
    """The torch expression that gives `tensor` (text, equal values) the named memory layout."""
    if layout == "transposed":
        return f"{tensor}.transpose(-1, -2).contiguous().transpose(-1, -2)"
    if layout == "heads_inner":
        return f"{tensor}.transpose(-2, -3).contiguous().transpose(-2, -3)"
    if layout == "padded":
        return f"F.pad({tensor}, (0, 3))[..., :-3]"
    if layout == "every_second":
        return f"{tensor}.repeat_interleave(2, -1)[..., ::2]"
    if layout == "channels_last":
        return f"{tensor}.movedim(1, -1).contiguous().movedim(-1, 1)"
    if layout == "offset":
        return f"F.pad({tensor}, ({', '.join(['0, 0'] * (rank - 1) + ['1, 0'])}))[1:]"
    return tensor
