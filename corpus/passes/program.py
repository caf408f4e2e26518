"""Fewer operations: return less, make a value an input, leave an operation out."""

from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case
from generators.program.dtypes import category
from generators.program.edits import input_like, list_unaffected, prune_if_valid, substitute
from generators.program.ops import OPS
from generators.program.type_check import types_of


def drop_writes(case: Case) -> Iterator[Case]:
    """No write at all, the last half of them, then each gone; what it is written into is read as it was."""
    writes = [op for op in case.ops if OPS[op.kind].writes]
    chosen = [writes, writes[len(writes) // 2 :], *([op] for op in writes)] if writes else []
    for gone in chosen:
        # A target of a later write may be the result of one that goes.
        smaller = case
        for op in reversed(gone):
            smaller = substitute(smaller, {op.name: op.args[0]})
            smaller = replace(smaller, ops=tuple(o for o in smaller.ops if o.name != op.name))
        yield smaller


def return_less(case: Case) -> Iterator[Case]:
    """Return one value only: each that is returned now, then earlier ones, halving the distance."""
    if len(case.returns) > 1:
        for name in case.returns:
            yield replace(case, returns=(name,))
        for name in case.returns:
            yield replace(case, returns=tuple(r for r in case.returns if r != name))
    types = types_of(case)
    floats = [op.name for op in case.ops if category(types[op.name].dtype) == 2 and op.name not in case.returns]
    step = len(floats)
    while step:
        for at in range(step - 1, len(floats), max(1, step)):
            yield replace(case, returns=(floats[at],))
        step //= 2


def cut_to_inputs(case: Case) -> Iterator[Case]:
    """Make a computed value an input and drop what computed it; what removes most comes first."""
    types = types_of(case)
    cuts = []
    for op in case.ops:
        if op.name in case.returns and len(case.returns) == 1:
            continue
        rest = tuple(o for o in case.ops if o is not op)
        item = input_like(op.name, types[op.name], len(case.inputs))
        contracts = list_unaffected(case, [op.name])
        smaller = prune_if_valid(replace(case, ops=rest, inputs=(*case.inputs, item), contracts=contracts))
        if smaller is not None and len(smaller.ops) < len(case.ops):
            cuts.append(smaller)
    yield from sorted(cuts, key=lambda c: len(c.ops))


def bypass(case: Case) -> Iterator[Case]:
    """Replace an operation's result by one of its arguments, where the types allow."""
    inputs = {item.name for item in case.inputs}
    for op in reversed(case.ops):
        for arg in op.args:
            if not {arg, *case.returns} - {op.name} <= inputs:
                yield substitute(case, {op.name: arg})


def share(case: Case) -> Iterator[Case]:
    """Replace equal operations on the same values by one."""
    first: dict[tuple[object, ...], str] = {}
    for op in case.ops:
        same = first.setdefault((op.kind, op.args, op.attrs), op.name)
        if same != op.name:
            contracts = tuple(c.rename({op.name: same}) for c in case.contracts)
            yield replace(substitute(case, {op.name: same}), contracts=contracts)
