"""Edits of a program that the shrinker's passes and variants are made of."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from generators.errors import CaseError
from generators.program.case import Attr, Case, Contract, Input, Op, TensorType, Values
from generators.program.contracts import check_contract, inside
from generators.program.dtypes import category
from generators.program.sizes import Size
from generators.program.type_check import RESERVED, check, pruned, types_of


def valid(case: Case) -> Case | None:
    """The case without what is no longer needed, or None where it is not a well-typed program.

    A contract that no longer fits goes as well: the program is a case without it.
    """
    try:
        smaller = pruned(case)
        types = check(replace(smaller, contracts=()))
    except CaseError:
        return None
    return replace(smaller, contracts=tuple(c for c in smaller.contracts if _fits(c, smaller, types)))


def _fits(contract: Contract, case: Case, types: Mapping[str, TensorType]) -> bool:
    try:
        check_contract(contract, case, types)
    except CaseError:
        return False
    return True


def substituted(case: Case, names: Mapping[str, str]) -> Case:
    """The case with values read under other names; a contract that speaks for a replaced value is dropped."""
    ops = tuple(replace(op, args=tuple(names.get(a, a) for a in op.args)) for op in case.ops)
    returns = tuple(dict.fromkeys(names.get(r, r) for r in case.returns))
    contracts = tuple(c.renamed(names) for c in untouched(case, names))
    return replace(case, ops=ops, returns=returns, contracts=contracts)


def reading(op: Op, old: str, new: str) -> Op:
    """An operation that reads value `new` where it read `old`."""
    return replace(op, args=tuple(new if arg == old else arg for arg in op.args))


def untouched(case: Case, names: Iterable[str]) -> tuple[Contract, ...]:
    """The contracts that speak for none of the named operations: they hold whatever becomes of these."""
    return tuple(c for c in case.contracts if inside(case, c).isdisjoint(names))


def with_op(case: Case, op: Op, new: Op) -> Case:
    """The case with one operation replaced. A contract that speaks for it is dropped: the meaning may have changed."""
    return replace(case, ops=tuple(new if o is op else o for o in case.ops), contracts=untouched(case, [op.name]))


def with_input(case: Case, item: Input, new: Input) -> Case:
    """The case with one input replaced."""
    return replace(case, inputs=tuple(new if i is item else i for i in case.inputs))


def input_like(name: str, kind: TensorType, seed: int) -> Input:
    """A plain input of the given type."""
    name_of_values = ("random", "zero_one", "normal")[category(kind.dtype)]
    return Input(name, kind.shape, kind.dtype, Values(name_of_values, seed, 0.5 if kind.dtype == "bool" else 1.0))


def resized(case: Case, sizes: Mapping[str, int]) -> Case | None:
    """The case with other sizes; where the fused call takes its scale from head_dim, so does its contract."""
    case = replace(case, dims=tuple(sizes.items()))
    unscaled = {op.name: op.args[0] for op in case.ops if op.kind == "sdpa" and op.attr("scale") is None}
    if not unscaled.keys() & {c.output for c in case.contracts}:
        return valid(case)
    try:
        types = types_of(case)
    except CaseError:
        return None
    scales = {out: 1 / math.sqrt(max(1, types[q].shape[-1].value(sizes))) for out, q in unscaled.items()}
    contracts = (replace(c, scale=scales.get(c.output, c.scale)) for c in case.contracts)
    return valid(replace(case, contracts=tuple(contracts)))


def renamed_dims(case: Case, names: Mapping[str, str]) -> Case:
    """The case with dimensions under other names; two that get one name become one, which has to have their size."""
    dims = {names.get(name, name): size for name, size in case.dims}
    return replace(with_sizes(case, lambda size: size.renamed(names)), dims=tuple(dims.items()))


def with_sizes(case: Case, change: Callable[[Size], Size]) -> Case:
    """The case with every size in it changed; dimensions no longer named are left to pruning."""

    def changed(value: Attr) -> Attr:
        if isinstance(value, Size):
            return change(value)
        if isinstance(value, tuple):
            return tuple(change(v) if isinstance(v, Size) else v for v in value)
        return value

    return replace(
        case,
        inputs=tuple(replace(i, shape=tuple(change(s) for s in i.shape)) for i in case.inputs),
        ops=tuple(replace(o, attrs=tuple((k, changed(v)) for k, v in o.attrs)) for o in case.ops),
    )


def fresh(case: Case, hint: str, taken: Iterable[str] = ()) -> str:
    """A name for a value that neither the case nor `taken` has, made from `hint`."""
    used = {i.name for i in case.inputs} | {o.name for o in case.ops} | set(taken)
    hint = hint.lower().rstrip("0123456789") or "x"
    name, number = hint, 2
    while name in used or name in RESERVED:
        name, number = f"{hint}{number}", number + 1
    return name
