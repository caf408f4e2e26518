"""Which elements of a tensor are wrong, axis by axis, as data (fuzz/localisation.py puts it into words)."""

from typing import Any

from torch import Tensor

from fuzz.check.oracle.constants import LONGEST_AXIS


def where(value: str, wrong: Tensor) -> dict[str, Any]:
    """JSON-ready:

    value, shape, wrong (their number); ranges: by axis the indices that have a wrong element, as [[first, last], ...];
    counts: by axis the wrong elements at each index, empty for long axes; spanned: the number of elements whose every
    index is in the ranges, and product: whether all of those are wrong; pairs: of four axes the first two taken as one,
    its ranges (a head that is right in one batch of many shows only there).
    """
    counts = [_along(wrong, axis) for axis in range(wrong.dim())]
    total, spanned = int(wrong.sum()), 1
    for count in counts:
        spanned *= sum(number > 0 for number in count)
    return {
        "value": value,
        "shape": list(wrong.shape),
        "wrong": total,
        "ranges": [_ranges(count)[:LONGEST_AXIS] for count in counts],
        "counts": [count if len(count) <= LONGEST_AXIS else [] for count in counts],
        "spanned": spanned,
        "product": total == spanned,
        "pairs": _ranges(_along(wrong.flatten(0, 1), 0))[:LONGEST_AXIS] if wrong.dim() == 4 else [],
    }


def _along(wrong: Tensor, axis: int) -> list[int]:
    others = [other for other in range(wrong.dim()) if other != axis]
    counts: list[int] = (wrong.sum(others) if others else wrong.long()).tolist()
    return counts


def _ranges(counts: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for index, count in enumerate(counts):
        if not count:
            continue
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
