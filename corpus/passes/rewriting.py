"""Edits of a program that several passes are made of."""

from collections.abc import Mapping
from dataclasses import replace

from generators.case import Case, Contract, Input, Op, TensorType, Values
from generators.dtypes import category
from generators.errors import CaseError
from generators.program import check, pruned


def valid(case: Case) -> Case | None:
    """The case without what is no longer needed, or None where it is not a well-typed program."""
    try:
        smaller = pruned(case)
        check(smaller)
    except CaseError:
        return None
    return smaller


def substituted(case: Case, names: Mapping[str, str]) -> Case:
    """The case with values read under other names; contracts that mention a replaced value are dropped."""
    ops = tuple(replace(op, args=tuple(names.get(a, a) for a in op.args)) for op in case.ops)
    returns = tuple(dict.fromkeys(names.get(r, r) for r in case.returns))
    return replace(case, ops=ops, returns=returns, contracts=tuple(c for c in case.contracts if not _names(c) & set(names)))


def _names(contract: Contract) -> set[str]:
    return {n for n in (contract.q, contract.k, contract.v, contract.mask, contract.output) if n is not None}


def with_op(case: Case, op: Op, new: Op) -> Case:
    """The case with one operation replaced. Its contracts are dropped: the meaning may have changed."""
    return replace(case, ops=tuple(new if o is op else o for o in case.ops), contracts=())


def with_input(case: Case, item: Input, new: Input) -> Case:
    """The case with one input replaced."""
    return replace(case, inputs=tuple(new if i is item else i for i in case.inputs))


def input_like(name: str, kind: TensorType, seed: int) -> Input:
    """A plain input of the given type."""
    values = Values({0: "random", 1: "zero_one", 2: "normal"}[category(kind.dtype)], seed, 0.5 if kind.dtype == "bool" else 1.0)
    return Input(name, kind.shape, kind.dtype, values)
