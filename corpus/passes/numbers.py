"""Rounder numbers: 1, 2, 0.5 and whole numbers in place of long constants."""

import math
from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case
from generators.program.edits import valid, with_input, with_op
from generators.program.type_check import make_op


def rounder_numbers(case: Case) -> Iterator[Case]:
    """One number attribute, or the scale of one input, made shorter."""
    for op in case.ops:
        given = dict(op.attrs)
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for plain in _plainer(value):
                smaller = valid(with_op(case, op, make_op(op.name, op.kind, op.args, {**given, name: plain})))
                if smaller is not None:
                    yield smaller
    for item in case.inputs:
        for plain in _plainer(item.values.scale):
            yield with_input(case, item, replace(item, values=replace(item.values, scale=float(plain))))


def _plainer(value: float) -> Iterator[float]:
    if not math.isfinite(value):
        return
    options: list[float] = [1.0, 2.0, 0.5, -1.0, float(round(value)), round(value, 1), float(f"{value:.1g}")]
    if isinstance(value, int):
        options = [1, 2, -1]
    yield from dict.fromkeys(o for o in options if o != value)
