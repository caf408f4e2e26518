"""The forms of a program that rewrites tell apart: float32 or half precision, inference or training, one batch or several."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from generators.case import MODES, Case
from generators.choices import Choices
from generators.dtypes import LOW_PRECISION, category
from generators.mutations.surroundings import in_dtype, in_mode
from generators.rewriting import resized


class Variant(NamedTuple):
    """Which of its forms a program has."""

    half: bool
    mode: str
    one_batch: bool


def variant(case: Case) -> Variant:
    """The form of a case, by its first floating input and the first axis of its first input."""
    return Variant(_dtype(case) in LOW_PRECISION, case.mode, case.sizes.get(_batch(case)) == 1)


def siblings(case: Case, c: Choices) -> Iterator[Case]:
    """The same program in its other forms. Not all of them need be well typed."""
    dtype, batch = _dtype(case), _batch(case)
    if not dtype:
        return
    other = c.pick(LOW_PRECISION) if dtype == "float32" else "float32"
    size = case.sizes.get(batch, 1)
    for new, mode, length in itertools.product((dtype, other), MODES, (size, 1 if size > 1 else 2) if batch else (size,)):
        form = case if length == size else resized(case, {**case.sizes, batch: length})
        if form is None:
            continue
        form = form if new == dtype else in_dtype(form, dtype, new, casts=True)
        form = form if mode == case.mode else in_mode(form, mode)
        if form != case:
            yield form


def _dtype(case: Case) -> str:
    return next((i.dtype for i in case.inputs if category(i.dtype) == 2), "")


def _batch(case: Case) -> str:
    """The name of the dimension that counts batches, "" where none does."""
    first = next((i.shape[0] for i in case.inputs if not i.parameter and i.shape), None)
    return str(first) if first is not None and first.is_name else ""
