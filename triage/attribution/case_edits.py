"""A case with one thing changed, as experiments need it. All give None where the result is no other case."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from corpus.passes.contracts import simplify_contract
from generators.program import edits
from generators.program.case import Attr, Case, Op
from generators.program.dtypes import LOW_PRECISION
from generators.program.edits import valid
from generators.program.type_check import make_op

_FLOATS = ("float32", *LOW_PRECISION)
_INTEGERS = frozenset({"int64", "int32", "int8", "uint8"})


def with_positive_scale(case: Case) -> Case | None:
    """Every scale is positive."""

    def change(_op: Op, name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return abs(value) if name in ("scale", "other") and is_number else value  # type: ignore[arg-type]

    contracts = tuple(replace(contract, scale=abs(contract.scale)) for contract in case.contracts)
    return _other_than(case, replace(_with_attributes(case, change), contracts=contracts))


def without_causality(case: Case) -> Iterator[Case]:
    """The cases that are the same but for causality."""
    ops = tuple(make_op(op.name, op.kind, op.args, {k: v for k, v in op.attrs if k != "is_causal"}) for op in case.ops)
    if ops != case.ops:
        contracts = tuple(replace(contract, causal=None) for contract in case.contracts)
        yield from filter(None, [valid(replace(case, ops=ops, contracts=contracts))])
        return
    for other in simplify_contract(case):
        if other.contracts:
            contract = other.contracts[0]
            if contract.causal is None and contract.scale == case.contracts[0].scale:
                yield other


def with_contiguous_operands(case: Case) -> Case | None:
    """What contracts and fused calls read is copied into contiguous memory first."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    wanted |= {arg for op in case.ops if op.kind in ("sdpa", "bmm", "matmul") for arg in op.args[:3]}
    used = {item.name for item in case.inputs} | {op.name for op in case.ops}
    names = {
        op.name: next(n for n in (f"{op.name[:24]}_copy{i or ''}" for i in itertools.count()) if n not in used)
        for op in case.ops
        if op.name in wanted
    }
    ops: list[Op] = []
    for op in case.ops:
        ops.append(replace(op, args=tuple(names.get(arg, arg) for arg in op.args)))
        if op.name in names:
            ops.append(make_op(names[op.name], "clone", (op.name,), {"memory_format": "contiguous"}))
    inputs = tuple(replace(item, layout="contiguous") for item in case.inputs)
    contracts = tuple(contract.renamed(names) for contract in case.contracts)
    return _other_than(case, replace(case, ops=tuple(ops), inputs=inputs, contracts=contracts))


def in_dtype(case: Case, dtype: str) -> Case | None:
    """Every floating dtype is this one."""
    inputs = tuple(replace(item, dtype=dtype) if item.dtype in _FLOATS else item for item in case.inputs)
    changed = _with_attributes(case, lambda _op, _name, value: dtype if value in _FLOATS else value)
    return _other_than(case, replace(changed, inputs=inputs))


def with_float_divisors(case: Case) -> Case | None:
    """Integers that products are multiplied with or divided by are floats."""

    def change(op: Op, name: str, value: Attr) -> Attr:
        is_factor = op.kind in ("div", "mul") and name == "other"
        return float(value) if is_factor and isinstance(value, int) and not isinstance(value, bool) else value

    return _other_than(case, _with_attributes(case, change))  # 3 == 3.0, but not in text


def with_zero_one_masks(case: Case) -> Case | None:
    """Integer inputs that are compared with something, or all where none is, hold 0 and 1."""
    read = {arg for op in case.ops if op.kind in ("eq", "ne", "compare") for arg in op.args}
    inputs = tuple(
        replace(item, values=replace(item.values, kind="zero_one"))
        if item.dtype in _INTEGERS
        and item.values.kind not in ("zero_one", "tokens")
        and (item.name in read or not read)
        else item
        for item in case.inputs
    )
    return None if inputs == case.inputs else valid(replace(case, inputs=inputs))


def resized(case: Case, name: str, size: int) -> Case | None:
    """One dimension has another size. None also where the attention would be another one."""
    other = edits.resized(case, {**case.sizes, name: size})
    return other if other is not None and len(other.contracts) == len(case.contracts) else None


def _with_attributes(case: Case, change: Callable[[Op, str, Attr], Attr]) -> Case:
    ops = (make_op(op.name, op.kind, op.args, {k: change(op, k, v) for k, v in op.attrs}) for op in case.ops)
    return replace(case, ops=tuple(ops))


def _other_than(case: Case, other: Case) -> Case | None:
    made = valid(other)
    return None if made is None or made.canonical() == case.canonical() else made
