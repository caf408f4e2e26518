"""Which elements of a tensor are wrong (fuzz/error_location.py puts it into words), and a map of how far it is off."""

import math

import torch
from torch import Tensor, nn

from fuzz.check.oracle.constants import LONGEST_AXIS, MAP_AXIS, MAP_BLOCKS
from fuzz.protocol import ErrorMap, WrongElements


def locate(value: str, wrong: Tensor) -> WrongElements:
    """Where the elements of `value` are that the mask `wrong` marks."""
    counts = [_along(wrong, axis) for axis in range(wrong.dim())]
    total = int(wrong.sum())
    spanned = math.prod(sum(number > 0 for number in count) for count in counts)
    return WrongElements(
        value=value,
        shape=tuple(wrong.shape),
        wrong=total,
        ranges=tuple(_ranges(count) for count in counts),
        spanned=spanned,
        product=total == spanned,
    )


def error_map(name: str, wrong: Tensor, value: Tensor, exact: Tensor) -> ErrorMap | None:
    """The largest absolute error of each block of `value` against `exact`; None for a scalar and an empty tensor."""
    if not value.dim() or not value.numel():
        return None
    errors = (value.detach().double() - exact.double()).abs()
    known = errors.isfinite()
    # Without a number: infinite where there should be one, else below every error, so that a block's others count.
    errors = errors.masked_fill(~known, -1.0).masked_fill(wrong & ~known, math.inf)
    # How many elements of each axis make a block, none of them more than they must be.
    block = [-(-size // MAP_AXIS) for size in value.shape]
    while math.prod(counts := [-(-size // width) for size, width in zip(value.shape, block, strict=True)]) > MAP_BLOCKS:
        block[counts.index(max(counts))] *= 2
    largest = _pool(errors, block, -1.0).flatten()
    marked = _pool(wrong.double(), block, 0.0).flatten().nonzero().flatten()
    return ErrorMap(
        name,
        tuple(value.shape),
        tuple(block),
        tuple(math.nan if error < 0 else float(f"{error:.3g}") for error in largest.tolist()),
        tuple(marked.tolist()),
    )


def _pool(values: Tensor, block: list[int], least: float) -> Tensor:
    """The largest of each block's values; `least` stands for what is not there at the ends."""
    for axis, width in enumerate(block):
        missing = -values.shape[axis] % width
        values = nn.functional.pad(values, (*(0, 0) * (values.dim() - 1 - axis), 0, missing), value=least)
        values = values.unflatten(axis, (-1, width)).amax(axis + 1)
    return values


def first_index(mask: Tensor) -> tuple[int, ...]:
    """The index of the first element that `mask` marks."""
    return tuple(torch.nonzero(mask)[0].tolist())


def largest_index(value: Tensor) -> tuple[int, ...]:
    """The index of the largest element."""
    return unravel(int(value.argmax()), value.shape)


def unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The index of the element with this flat index."""
    return tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), shape))


def _along(wrong: Tensor, axis: int) -> list[int]:
    others = [other for other in range(wrong.dim()) if other != axis]
    return (wrong.sum(others) if others else wrong.long()).tolist()


def _ranges(counts: list[int]) -> tuple[tuple[int, ...], ...]:
    ranges: list[tuple[int, int]] = []
    for index in (index for index, count in enumerate(counts) if count):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return tuple(ranges[:LONGEST_AXIS])
