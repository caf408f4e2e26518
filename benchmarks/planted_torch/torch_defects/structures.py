"""Structures of arguments, as real modules have them and random numbers hardly ever do."""

from typing import Any


def has_masked_row(value: Any) -> bool:
    """A row of an additive mask keeps nothing."""
    return bool(value.is_floating_point() and value.dim() > 1 and (value <= -1e4).all(-1).any())


def is_padded_left(value: Any) -> bool:
    """A mask of 0 and 1 drops the first places of a row, and keeps the last."""
    if value.is_floating_point() or value.dim() != 2 or value.shape[-1] < 2 or not ((value == 0) | (value == 1)).all():
        return False
    kept = value.long()
    return bool(((kept[:, 0] == 0) & (kept[:, -1] == 1) & (kept.diff(dim=-1) >= 0).all(-1)).any())


def has_unused_tail(value: Any) -> bool:
    """A cache of keys is filled at its beginning only."""
    if not value.is_floating_point() or value.dim() != 4 or value.shape[2] < 4:
        return False
    half = value.shape[2] // 2
    return bool((value[:, :, half:] == 0).all() and (value[:, :, 0] != 0).all())


def is_sorted(value: Any) -> bool:
    """Indices that do not fall, such as the segments of packed sequences."""
    if value.is_floating_point() or value.dtype.itemsize < 4 or value.dim() != 1 or value.shape[0] < 4:
        return False
    steps = value.diff()
    return bool((steps >= 0).all() and (steps == 0).any() and steps.any())


def has_massive_channel(value: Any) -> bool:
    """A channel is hundreds of times the others."""
    if not value.is_floating_point() or value.dim() != 3:
        return False
    channels = value.abs().flatten(0, -2).amax(0)
    return bool(channels.max() > 300 * channels.median() > 0)


def has_equal_rows(value: Any) -> bool:
    """Neighbouring rows are equal, such as those of a repeated token."""
    if not value.is_floating_point() or value.dim() != 3 or value.shape[1] < 2:
        return False
    return bool(((value[:, 1:] == value[:, :-1]).all(-1) & (value[:, 1:] != 0).any(-1)).any())


STRUCTURES = {
    "row_masked": has_masked_row,
    "padded_left": is_padded_left,
    "tail_unused": has_unused_tail,
    "indices_sorted": is_sorted,
    "channel_massive": has_massive_channel,
    "rows_equal": has_equal_rows,
}
"""By the name of the defect that shows only where an argument has the structure."""
