"""Edits of a program that several passes are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from generators.case import Case, Contract, Input, Op, TensorType, Values
from generators.contracts import check_contract, inside
from generators.dtypes import category
from generators.errors import CaseError
from generators.program import check, pruned


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
    values = Values({0: "random", 1: "zero_one", 2: "normal"}[category(kind.dtype)], seed, 0.5 if kind.dtype == "bool" else 1.0)
    return Input(name, kind.shape, kind.dtype, values)
