"""Fewer calls and operations: return less, make a value an input, leave an operation out."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from generators.program.case import Case, LaterCall
from generators.program.dtypes import category
from generators.program.edits import input_like, list_unaffected, prune_if_valid, substitute
from generators.program.later_calls import at_call
from generators.program.ops import OPS
from generators.program.simplicity import SIMPLER_CALLS
from generators.program.type_check import types_of


def drop_calls(case: Case) -> Iterator[Case]:
    """Call the module once, as the first call does or as any other does; then leave calls out one by one."""
    for call in (LaterCall(), *case.calls) if case.calls else ():
        yield at_call(case, call)
    if len(case.calls) > 1:
        for call in case.calls:
            yield replace(case, calls=(call,))
        for at, call in enumerate(case.calls):
            others = (*case.calls[:at], *case.calls[at + 1 :])
            yield replace(case, calls=others)
            # This leaves out the first call.
            yield replace(at_call(case, call), calls=others, checkpoint=case.checkpoint)
    yield replace(case, checkpoint="")


def drop_differences(case: Case) -> Iterator[Case]:
    """Leave out a difference of a call from the first call, or simplify it."""
    for at, call in enumerate(case.calls):
        changes: list[dict[str, Any]] = [{field.name: field.default} for field in fields(call)]
        changes += [{"sizes": (item,)} for item in call.sizes]
        changes += [{name: word} for name, words in SIMPLER_CALLS.items() for word in words]
        for number, (name, size) in enumerate(call.sizes):
            for smaller in (case.sizes[name] + 1, 1, 2, size // 2, size - 1):
                sizes = (*call.sizes[:number], (name, smaller), *call.sizes[number + 1 :])
                changes.append({"sizes": sizes})
        for change in changes:
            yield replace(case, calls=(*case.calls[:at], replace(call, **change), *case.calls[at + 1 :]))


def drop_writes(case: Case) -> Iterator[Case]:
    """Without all writes, the last half of them, then each; later reads see the target as it was before the write."""
    writes = [op for op in case.ops if OPS[op.kind].writes]
    chosen = [writes, writes[len(writes) // 2 :], *([op] for op in writes)] if writes else []
    for gone in chosen:
        smaller = case
        for op in reversed(gone):  # the target of a write may be the result of an earlier write
            smaller = substitute(smaller, {op.name: op.args[0]})
            smaller = replace(smaller, ops=tuple(o for o in smaller.ops if o.name != op.name))
        yield smaller


def return_less(case: Case) -> Iterator[Case]:
    """Return a single value: each that is returned now, then earlier values, halving the distance."""
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
    """Make a computed value an input, without the operations before it; the cut that removes most comes first."""
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
    """One of two equal operations."""
    first: dict[tuple[object, ...], str] = {}
    for op in case.ops:
        same = first.setdefault((op.kind, op.args, op.attrs), op.name)
        if same != op.name:
            contracts = tuple(contract.rename({op.name: same}) for contract in case.contracts)
            yield replace(substitute(case, {op.name: same}), contracts=contracts)
