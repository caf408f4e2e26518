"""Which elements of a tensor are wrong (fuzz/error_location.py puts it into words)."""

import torch
from torch import Tensor

from fuzz.check.oracle.constants import LONGEST_AXIS
from fuzz.protocol import WrongElements


def locate(value: str, wrong: Tensor) -> WrongElements:
    """Where the elements of `value` are that the mask `wrong` marks."""
    ranges = tuple(_ranges(_along(wrong, axis)) for axis in range(wrong.dim()))
    return WrongElements(value, tuple(wrong.shape), int(wrong.sum()), ranges)


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
