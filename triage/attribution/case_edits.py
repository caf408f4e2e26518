"""Edits of a case, by the id of their experiment; None if nothing changes or the case becomes invalid."""

from collections.abc import Callable
from dataclasses import replace

from generators.program.case import Attr, Case, Op
from generators.program.dtypes import FLOATS, LOW_PRECISION
from generators.program.edits import (
    change_dtype,
    make_contiguous,
    make_name,
    map_attributes,
    map_inputs,
    prune_if_valid,
)
from generators.program.type_check import make_op, types_of

OVERLAPPING = ("unfold", "expand", "expand_as")
"""Operations whose results may overlap in memory."""


def list_low_precision(case: Case) -> list[str]:
    """The low-precision dtypes of the case's values."""
    return sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))


def _with_positive_scale(case: Case) -> Case | None:
    def change(name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        positive = abs(value) or (1.0 if name == "scale" else value) if is_number else value  # type: ignore[arg-type]
        return positive if name in ("scale", "other") else value

    contracts = tuple(replace(contract, scale=abs(contract.scale) or 1.0) for contract in case.contracts)
    return _if_changed(case, replace(map_attributes(case, change), contracts=contracts))


def _with_contiguous_operands(case: Case) -> Case | None:
    """Operands of contracts and fused calls, and values that overlap in memory, are copied first."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    # A copy between other operations would hide attention from the patterns that look for it.
    wanted |= {arg for op in case.ops if op.kind == "sdpa" for arg in op.args[:3]}
    wanted |= {op.name for op in case.ops if op.kind in OVERLAPPING}
    ops: list[Op] = []
    for op in case.ops:
        name = make_name(case, f"{op.name[:24]}_strided", (op.name for op in ops)) if op.name in wanted else op.name
        ops.append(replace(op, name=name))
        if op.name in wanted:
            ops.append(make_op(op.name, "clone", (name,), {"memory_format": "contiguous"}))
    return _if_changed(case, make_contiguous(replace(case, ops=tuple(ops))))


def _in_one_dtype(case: Case) -> Case | None:
    low = list_low_precision(case)
    changed = map_inputs(case, lambda item: replace(item, dtype=low[0]) if low and item.dtype in FLOATS else item)
    return _if_changed(case, changed)


def _in_float32(case: Case) -> Case | None:
    return _if_changed(case, change_dtype(case, LOW_PRECISION, "float32"))


def _if_changed(case: Case, other: Case) -> Case | None:
    made = prune_if_valid(other)
    return None if made is None or made.canonical() == case.canonical() else made


EDITS: dict[str, Callable[[Case], Case | None]] = {
    "positive_scale": _with_positive_scale,
    "contiguous": _with_contiguous_operands,
    "one_dtype": _in_one_dtype,
    "float32": _in_float32,
}
