"""Which elements of a tensor are wrong, axis by axis, as data (fuzz/error_location.py puts it into words)."""

import torch
from torch import Tensor

from fuzz.check.oracle.constants import LONGEST_AXIS
from fuzz.protocol import WrongElements


def locate(value: str, wrong: Tensor) -> WrongElements:
    """Where the elements of `value` are that the mask `wrong` marks."""
    counts = [_along(wrong, axis) for axis in range(wrong.dim())]
    total, spanned = int(wrong.sum()), 1
    for count in counts:
        spanned *= sum(number > 0 for number in count)
    return WrongElements(
        value=value,
        shape=tuple(wrong.shape),
        wrong=total,
        ranges=tuple(_ranges(count) for count in counts),
        counts=tuple(tuple(count) if len(count) <= LONGEST_AXIS else () for count in counts),
        spanned=spanned,
        product=total == spanned,
        pairs=_ranges(_along(wrong.flatten(0, 1), 0)) if wrong.dim() == 4 else (),
    )


def first_index(mask: Tensor) -> tuple[int, ...]:
    """The index of the first element that `mask` marks."""
    return tuple(torch.nonzero(mask)[0].tolist())


def largest_index(value: Tensor) -> tuple[int, ...]:
    """The index of the largest element."""
    return tuple(int(place) for place in torch.unravel_index(value.argmax(), value.shape))


def _along(wrong: Tensor, axis: int) -> list[int]:
    others = [other for other in range(wrong.dim()) if other != axis]
    counts: list[int] = (wrong.sum(others) if others else wrong.long()).tolist()
    return counts


def _ranges(counts: list[int]) -> tuple[tuple[int, ...], ...]:
    ranges: list[tuple[int, int]] = []
    for index, count in enumerate(counts):
        if not count:
            continue
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return tuple(ranges[:LONGEST_AXIS])
