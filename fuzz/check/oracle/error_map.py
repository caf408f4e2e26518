"""How far a value is off, in blocks few enough to send and to draw."""

import math

import torch
from torch import Tensor

from fuzz.check.oracle.constants import MAP_AXIS, MAP_BLOCKS
from fuzz.protocol import ErrorMap


def error_map(name: str, wrong: Tensor, value: Tensor, exact: Tensor) -> ErrorMap | None:
    """The largest absolute error of each block of `value` against `exact`; None for a scalar and an empty tensor."""
    if not value.dim() or not value.numel():
        return None
    errors = (value.detach().double() - exact.double()).abs()
    known = errors.isfinite()
    # Without a number: infinite where there should be one, else below every error, so that a block's others count.
    errors = errors.masked_fill(~known, -1.0).masked_fill(wrong & ~known, math.inf)
    block = _block(value.shape)
    largest = _pool(errors, block, -1.0).flatten()
    marked = _pool(wrong.double(), block, 0.0).flatten().nonzero().flatten()
    return ErrorMap(
        name,
        tuple(value.shape),
        block,
        tuple(math.nan if error < 0 else float(f"{error:.3g}") for error in largest.tolist()),
        tuple(marked.tolist()),
    )


def _block(shape: torch.Size) -> tuple[int, ...]:
    """How many elements of each axis make a block."""
    block = [-(-size // MAP_AXIS) for size in shape]

    def counts() -> list[int]:
        return [-(-size // width) for size, width in zip(shape, block, strict=True)]

    while math.prod(counts()) > MAP_BLOCKS:
        block[counts().index(max(counts()))] *= 2
    return tuple(block)


def _pool(values: Tensor, block: tuple[int, ...], least: float) -> Tensor:
    """The largest of each block's values; `least` stands for what is not there at the ends."""
    for axis, width in enumerate(block):
        size = values.shape[axis]
        missing = -size % width
        if missing:
            shape = [*values.shape[:axis], missing, *values.shape[axis + 1 :]]
            values = torch.cat([values, values.new_full(shape, least)], axis)
        values = values.unflatten(axis, ((size + missing) // width, width)).amax(axis + 1)
    return values
