"""Variants of a case in precision, mode, dropout and batch size 1: Inductor has separate patterns for these."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from generators.program import edits
from generators.program.case import Attr, Case, Input
from generators.program.emit import is_random
from generators.program.ops import make_op
from generators.program.values import LOW_PRECISION, category
from generators.sampling.choices import Choices
from generators.sampling.dropout import add_dropout

FLOAT32, HALF, MIXED = "float32", "half precision", "half precision with masks in float32"
INFERENCE, TRAINING, DROPOUT = "inference", "training", "training with dropout"


class Variant(NamedTuple):
    """The traits of a program that Inductor has separate patterns for."""

    precision: str
    mode: str
    one_batch: bool


def variant_of(case: Case) -> Variant:
    """Decided by the first floating input, the masks, dropout, and the first axis of the first argument."""
    precision = FLOAT32
    if _dtype(case) in LOW_PRECISION:
        precision = MIXED if any(mask.dtype == "float32" for mask in _masks(case)) else HALF
    mode = INFERENCE
    if case.training:
        mode = DROPOUT if is_random(case) else TRAINING
    return Variant(precision, mode, case.sizes.get(_batch(case)) == 1)


def make_variants(case: Case, c: Choices) -> list[Case]:
    """The valid variants of the case, without its own."""
    return [reshape_views(other) for other in filter(None, map(edits.prune_if_valid, _list_variants(case, c)))]


def reshape_views(case: Case) -> Case:
    """The case with reshape in place of view: whether a view is possible depends on strides, which types don't have."""
    ops = (make_op(op.name, "reshape", op.args, dict(op.attrs)) if op.kind == "view" else op for op in case.ops)
    return replace(case, ops=tuple(ops))


def _list_variants(case: Case, c: Choices) -> Iterator[Case]:
    dtype, own = _dtype(case), variant_of(case)
    if not dtype:
        return
    precisions = (FLOAT32, HALF, MIXED) if _masks(case) else (FLOAT32, HALF)
    half = dtype if dtype in LOW_PRECISION else c.pick(LOW_PRECISION)
    batch = _batch(case)
    rebatched = edits.resize(case, {**case.sizes, batch: 2 if own.one_batch else 1}) if batch else None
    for wanted in map(Variant._make, itertools.product(precisions, (INFERENCE, TRAINING, DROPOUT), (False, True))):
        other = rebatched if wanted.one_batch != own.one_batch else case
        if other is None:
            continue
        other = _in_precision(other, wanted.precision, dtype, half)
        other = _in_mode(other, wanted.mode, own.mode)
        if wanted != own and variant_of(other) == wanted:
            yield other


def _in_precision(case: Case, precision: str, dtype: str, half: str) -> Case:
    new = "float32" if precision == FLOAT32 else half
    masks = {mask.name: "float32" if precision == MIXED else new for mask in _masks(case)}
    case = case if new == dtype else _in_dtype(case, dtype, new)
    return edits.map_inputs(case, lambda item: replace(item, dtype=masks.get(item.name, item.dtype)))


def _in_mode(case: Case, mode: str, before: str) -> Case:
    if mode == before:
        return case
    if mode != INFERENCE:
        own = [op for op in case.ops if op.kind == "dropout"]
        case = add_dropout(case) if mode == DROPOUT else reduce(edits.skip_op, reversed(own), case)
    if INFERENCE in (mode, before):
        # A contract's `dropout` depends on the mode.
        kept = () if any(op.kind in ("dropout", "sdpa") for op in case.ops) else case.contracts
        case = replace(case, mode="inference" if mode == INFERENCE else "training", contracts=kept)
    # Masks need no gradient in models, and patterns match no mask that needs a gradient.
    return edits.detach_inputs(case, [mask.name for mask in _masks(case)]) if before == INFERENCE else case


def _masks(case: Case) -> list[Input]:
    """The floating inputs that are masks, by their values, or because a contract's bias depends on them."""
    attended = case.dependencies([name for c in case.contracts for name in (c.q, c.k, c.v)])
    added = case.dependencies([c.bias for c in case.contracts if c.bias]) - attended
    given = (item for item in case.arguments if category(item.dtype) == 2)
    return [item for item in given if item.values.kind.endswith("mask") or item.name in added]


def _dtype(case: Case) -> str:
    return next((i.dtype for i in case.inputs if category(i.dtype) == 2), "")


def _batch(case: Case) -> str:
    first = next((i.shape[0] for i in case.arguments if i.shape), None)
    return str(first) if first is not None and first.is_name else ""


_FLOAT16_MAX, _LOW = 65504.0, 3e4


def _in_dtype(case: Case, old: str, new: str) -> Case:
    """The case with inputs of dtype `old` in `new`, and the casts to it.

    Numbers beyond the range of float16, which eager refuses, become +-3e4, which masks as well.
    """
    changed = edits.change_dtype(case, [old], new)
    if new == "float16":
        changed = edits.map_attributes(changed, lambda _, value: _within_float16(value))
    # A contract's finite fill may be the lowest number of the old dtype.
    return replace(changed, contracts=tuple(c for c in case.contracts if c.fill == -math.inf))


def _within_float16(value: Attr) -> Attr:
    return math.copysign(_LOW, value) if isinstance(value, float) and _FLOAT16_MAX < abs(value) < math.inf else value
