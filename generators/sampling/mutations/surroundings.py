"""Edits of what surrounds the operations: sizes, numbers, memory, dtypes, mode."""

import math
from dataclasses import replace

from generators.program.case import Attr, Case, Input, Op
from generators.program.dtypes import category
from generators.program.edits import resized, with_input
from generators.program.type_check import attributes, make_op, types_of
from generators.program.values import DISTRIBUTIONS, LAYOUTS
from generators.sampling.choices import Choices

_SIZES = {
    1: 4.0,
    2: 4.0,
    3: 2.0,
    4: 2.0,
    5: 1.0,
    7: 1.0,
    8: 3.0,
    16: 2.0,
    17: 1.5,
    32: 1.0,
    33: 1.0,
    64: 1.0,
    65: 0.7,
    0: 0.3,
}
_FLOATS = ("float32", "bfloat16", "float16")
_FLOAT16_MAX, _LOW = 65504.0, 3e4
_SCALES = (1.0, 0.5, 3.0, 0.02, 10.0)


def equal_dims(case: Case, c: Choices) -> Case | None:
    """One dimension as large as another: rewrites that mix up two axes fit the shapes then."""
    free = _free(case)
    if not free:
        return None
    return resized(case, {**case.sizes, c.pick(free): c.pick(case.dims)[1]})


def resize(case: Case, c: Choices) -> Case | None:
    """One dimension of another size: 1, beside a power of two, now and then 0."""
    free = _free(case)
    if not free:
        return None
    name = c.pick(free)
    size = case.sizes[name]
    new = c.pick((size + 1, max(1, size - 1), size * 2)) if c.chance(0.3) else c.weighted(_SIZES)
    return resized(case, {**case.sizes, name: new})


def _free(case: Case) -> list[str]:
    """The dimensions that may have any size: an embedding's table has as many rows as the numbers that name them need."""
    types = types_of(case)
    fixed = [size for op in case.ops if op.kind == "embedding" for a in op.args for size in types[a].shape]
    names = {name for size in fixed for name in size.names()}
    return [name for name, _ in case.dims if name not in names]


def change_values(case: Case, c: Choices) -> Case | None:
    """An input filled in another way."""
    item = c.pick(case.inputs)
    kinds = [d.name for d in DISTRIBUTIONS.values() if item.dtype in d.dtypes and d.min_rank <= len(item.shape)]
    if item.values.kind == "tokens":  # numbers that name rows of a table
        return None
    kinds = [kind for kind in kinds if kind != "tokens"]
    values = replace(item.values, kind=c.pick(kinds), scale=c.pick(_SCALES) if item.dtype != "bool" else 0.5)
    return with_input(case, item, replace(item, values=values))


def change_layout(case: Case, c: Choices) -> Case | None:
    """An input that lies otherwise in memory, or is a parameter now."""
    item = c.pick(case.inputs)
    if c.chance(0.2):
        return with_input(case, item, replace(item, parameter=not item.parameter))
    layouts = [name for name, (rank, *_) in LAYOUTS.items() if rank <= len(item.shape) and name != item.layout]
    return with_input(case, item, replace(item, layout=c.pick(layouts))) if layouts else None


def change_dtype(case: Case, c: Choices) -> Case | None:
    """Another floating dtype throughout, or of one input."""
    found = {i.dtype for i in case.inputs if category(i.dtype) == 2}
    if not found:
        return None
    old = c.pick(sorted(found))
    new = c.pick([d for d in _FLOATS if d != old])
    if c.chance(0.2):
        item = c.pick([i for i in case.inputs if i.dtype == old])
        return with_input(case, item, replace(item, dtype=new))
    return in_dtype(case, old, new, casts=old == "float32" or c.chance(0.5))


def in_dtype(case: Case, old: str, new: str, *, casts: bool) -> Case:
    """The case with inputs of one dtype in another; and the casts to that dtype. Numbers that float16 does not have, which eager
    refuses, become one that masks as well."""

    def converted(op: Op) -> Op:
        attrs = attributes(op)
        changed = {key: _within_float16(value) for key, value in attrs.items()} if new == "float16" else attrs
        if casts and attrs.get("dtype") == old:
            changed = {**changed, "dtype": new}
        return op if changed == attrs else make_op(op.name, op.kind, op.args, changed)

    def cast(item: Input) -> Input:
        return replace(item, dtype=new) if item.dtype == old else item

    ops = tuple(converted(op) for op in case.ops)
    # The lowest number, which contracts name as such, is another one in another dtype.
    contracts = tuple(contract for contract in case.contracts if contract.fill == -math.inf)
    return replace(case, inputs=tuple(map(cast, case.inputs)), ops=ops, contracts=contracts)


def _within_float16(value: Attr) -> Attr:
    return math.copysign(_LOW, value) if isinstance(value, float) and _FLOAT16_MAX < abs(value) < math.inf else value


def change_mode(case: Case, c: Choices) -> Case | None:
    """Training instead of inference or the other way round; seldom dynamic shapes."""
    if c.chance(0.1):
        return replace(case, dynamic=not case.dynamic)
    return in_mode(case, "inference" if case.training else "training")


def in_mode(case: Case, mode: str) -> Case:
    """The case in another mode."""
    # A contract says how much is dropped in this mode.
    kept = () if any(op.kind in ("dropout", "sdpa") for op in case.ops) else case.contracts
    return replace(case, mode=mode, contracts=kept)
