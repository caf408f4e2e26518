"""Fewer operations: return less, cut the program off above a value, leave a step out."""

from collections.abc import Iterator
from dataclasses import replace

from corpus.passes.rewriting import input_like, substituted, valid
from generators.case import Case
from generators.dtypes import category
from generators.program import types_of


def return_less(case: Case) -> Iterator[Case]:
    """Return one value only: each that is returned now, then earlier ones, halving the distance."""
    if len(case.returns) > 1:
        for name in case.returns:
            smaller = valid(replace(case, returns=(name,)))
            if smaller is not None:
                yield smaller
        for name in case.returns:
            smaller = valid(replace(case, returns=tuple(r for r in case.returns if r != name)))
            if smaller is not None:
                yield smaller
    types = types_of(case)
    floats = [op.name for op in case.ops if category(types[op.name].dtype) == 2 and op.name not in case.returns]
    step = len(floats)
    while step:
        for at in range(step - 1, len(floats), max(1, step)):
            smaller = valid(replace(case, returns=(floats[at],)))
            if smaller is not None:
                yield smaller
        step //= 2


def cut_to_inputs(case: Case) -> Iterator[Case]:
    """Make a computed value an input, so that all that led to it goes; what removes most comes first."""
    types = types_of(case)
    cuts = []
    for op in case.ops:
        if op.name in case.returns and len(case.returns) == 1:
            continue
        rest = tuple(o for o in case.ops if o is not op)
        item = input_like(op.name, types[op.name], len(case.inputs))
        smaller = valid(replace(case, ops=rest, inputs=(*case.inputs, item), contracts=()))
        if smaller is not None and len(smaller.ops) < len(case.ops):
            cuts.append(smaller)
    yield from sorted(cuts, key=lambda c: len(c.ops))


def bypass(case: Case) -> Iterator[Case]:
    """Leave an operation out: what reads its result reads one of its arguments, where the types allow."""
    for op in reversed(case.ops):
        for arg in op.args:
            if arg in {i.name for i in case.inputs} and op.name in case.returns and len(case.ops) == 1:
                continue
            smaller = valid(substituted(case, {op.name: arg}))
            if smaller is not None and smaller.ops:
                yield smaller
