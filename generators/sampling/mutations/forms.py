"""The forms of a program that rewrites tell apart: its precision, its mode, active dropout, one batch or several."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from generators.program.case import Case, Input
from generators.program.dtypes import LOW_PRECISION, category
from generators.program.edits import fresh, reading, resized, substituted, untouched
from generators.program.emit import is_random
from generators.program.type_check import make_op
from generators.sampling.choices import Choices
from generators.sampling.mutations.surroundings import in_dtype, in_mode

FLOAT32, HALF, MIXED = "float32", "half precision", "half precision with masks in float32"
INFERENCE, TRAINING, DROPOUT = "inference", "training", "training with dropout"

_ON_THE_WAY = ("cast", "type_as", "to_own_dtype", "view", "reshape", "flatten")
_PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")
_RATE = 0.1


class Variant(NamedTuple):
    """Which of its forms a program has."""

    precision: str
    mode: str
    one_batch: bool

    def changed(self, other: "Variant") -> tuple[str, ...]:
        """What `other` has that this one has not, in words."""
        words = (other.precision, other.mode, "one batch" if other.one_batch else "several batches")
        return tuple(word for mine, its, word in zip(self, other, words, strict=True) if mine != its)


def variant(case: Case) -> Variant:
    """The form of a case: by its first floating input, its masks, its dropout and the first axis of its first input."""
    precision = FLOAT32
    if _dtype(case) in LOW_PRECISION:
        precision = MIXED if any(mask.dtype == "float32" for mask in _masks(case)) else HALF
    mode = INFERENCE
    if case.training:
        mode = DROPOUT if is_random(case) else TRAINING
    return Variant(precision, mode, case.sizes.get(_batch(case)) == 1)


def siblings(case: Case, c: Choices) -> Iterator[Case]:
    """The same program in its other forms. Not all of them need be well typed, and not every program has them all."""
    dtype, own = _dtype(case), variant(case)
    if not dtype:
        return
    precisions = (FLOAT32, HALF, MIXED) if _masks(case) else (FLOAT32, HALF)
    half = dtype if dtype in LOW_PRECISION else c.pick(LOW_PRECISION)
    for form in map(Variant._make, itertools.product(precisions, (INFERENCE, TRAINING, DROPOUT), (False, True))):
        other = _of_batches(case, one=form.one_batch) if form.one_batch != own.one_batch else case
        if other is None:
            continue
        other = _in_precision(other, form.precision, dtype, half)
        other = _in_mode(other, form.mode, own.mode)
        if form != own and variant(other) == form:
            yield other


def _of_batches(case: Case, *, one: bool) -> Case | None:
    batch = _batch(case)
    return resized(case, {**case.sizes, batch: 1 if one else 2}) if batch else None


def _in_precision(case: Case, precision: str, dtype: str, half: str) -> Case:
    new = "float32" if precision == FLOAT32 else half
    masks = {mask.name: "float32" if precision == MIXED else new for mask in _masks(case)}
    case = case if new == dtype else in_dtype(case, dtype, new, casts=True)
    if all(item.dtype == masks.get(item.name, item.dtype) for item in case.inputs):
        return case
    return replace(case, inputs=tuple(replace(i, dtype=masks.get(i.name, i.dtype)) for i in case.inputs))


def _in_mode(case: Case, mode: str, before: str) -> Case:
    if mode == before:
        return case
    if mode == INFERENCE:
        return in_mode(case, "inference")
    case = _with_dropout(case) if mode == DROPOUT else _without_dropout(case)
    return _with_masks_cut_off(in_mode(case, "training")) if before == INFERENCE else case


def _with_dropout(case: Case) -> Case:
    """The case with active dropout: its own, or of the weights of attention, a softmax and the casts and views after it."""
    own = [op.name for op in case.ops if op.kind == "dropout"]
    if own:
        ops = (make_op(op.name, "dropout", op.args, {"p": _RATE}) if op.name in own else op for op in case.ops)
        return replace(case, ops=tuple(ops), contracts=untouched(case, own))
    for softmax in [op.name for op in case.ops if op.kind == "softmax"]:
        weights = softmax
        while step := next((op for op in case.ops if op.args[:1] == (weights,) and op.kind in _ON_THE_WAY), None):
            weights = step.name
        products = [place for place, op in enumerate(case.ops) if weights in op.args and op.kind in _PRODUCTS]
        if products:
            dropped = make_op(fresh(case, "dropped"), "dropout", (weights,), {"p": _RATE})
            after = (
                reading(op, weights, dropped.name) if op.kind in _PRODUCTS else op for op in case.ops[products[0] :]
            )
            case = replace(case, ops=(*case.ops[: products[0]], dropped, *after), contracts=())
    return case


def _without_dropout(case: Case) -> Case:
    while dropout := next((op for op in case.ops if op.kind == "dropout"), None):
        case = substituted(case, {dropout.name: dropout.args[0]})
        case = replace(case, ops=tuple(op for op in case.ops if op.name != dropout.name))
    return case


def _with_masks_cut_off(case: Case) -> Case:
    """The case with masks that ask for no gradient, as those of models: rewrites leave others alone."""
    for mask in _masks(case):
        if any(op.kind == "detach" and op.args == (mask.name,) for op in case.ops):
            continue
        fixed = make_op(fresh(case, "fixed"), "detach", (mask.name,), {})
        case = substituted(case, {mask.name: fixed.name})
        case = replace(case, ops=(fixed, *case.ops))
    return case


def _masks(case: Case) -> list[Input]:
    """The floating inputs that say which keys to see: by their numbers, or as what a contract adds to scores is made of them."""
    attention = _behind(case, {name for c in case.contracts for name in (c.q, c.k, c.v)})
    added = _behind(case, {c.bias for c in case.contracts if c.bias}) - attention
    given = (item for item in case.inputs if not item.parameter and category(item.dtype) == 2)
    return [item for item in given if item.values.kind.endswith("mask") or item.name in added]


def _behind(case: Case, names: set[str]) -> set[str]:
    """The values that these are made of, and they themselves."""
    found = set(names)
    for op in reversed(case.ops):
        if op.name in found:
            found.update(op.args)
    return found


def _dtype(case: Case) -> str:
    return next((i.dtype for i in case.inputs if category(i.dtype) == 2), "")


def _batch(case: Case) -> str:
    """The name of the dimension that counts batches, "" where none does."""
    first = next((i.shape[0] for i in case.inputs if not i.parameter and i.shape), None)
    return str(first) if first is not None and first.is_name else ""
