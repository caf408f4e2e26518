"""Edits of the operations: one more, one less, another one, another argument."""

from collections.abc import Iterator
from dataclasses import replace

from generators.program.case import Case, Op
from generators.program.edits import fresh, reading, substituted, untouched, with_op
from generators.program.ops import OPS
from generators.program.type_check import make_op, types_of
from generators.sampling.choices import Choices
from generators.sampling.mutations import attributes

_LAYERS = frozenset({"multihead_attention", "transformer_encoder_layer", "transformer_decoder_layer", "flex_attention"})
_KINDS = tuple(kind for kind in OPS if kind not in _LAYERS)
"""What is put somewhere: a step, no layer of many."""


def insert(case: Case, c: Choices) -> Case | None:
    """A new operation between a value and one place that reads it, or all of them."""
    types = types_of(case)
    value, reader = c.pick(list(case.uses()))
    kind = c.pick(_KINDS)
    spec = OPS[kind]
    least, most = spec.arity
    before = _defined_before(case, reader)
    if most == 0 or value not in before:
        return None
    args = [value, *(c.pick(before) for _ in range(max(least, 1) - 1))]
    if len(args) < most and c.chance(0.4):
        args.append(c.pick(before))
    attrs = attributes.draw(c, spec, case, [types[a] for a in args])
    new = make_op(fresh(case, kind), kind, args, attrs)
    everywhere = c.chance(0.3)
    ops: list[Op] = []
    for op in case.ops:
        if op is reader or (everywhere and new in ops and value in op.args):
            if new not in ops:
                ops.append(new)
            ops.append(reading(op, value, new.name))
        else:
            ops.append(op)
    returns = case.returns
    if reader is None or everywhere:
        ops = ops if new in ops else [*ops, new]
        returns = tuple(new.name if r == value else r for r in returns)
    changed = [op.name for op in ops if new.name in op.args]
    return replace(case, ops=tuple(ops), returns=returns, contracts=untouched(case, changed))


def delete(case: Case, c: Choices) -> Case | None:
    """One operation left out: what reads its result reads one of its arguments."""
    op = _any_op(case, c)
    return substituted(case, {op.name: c.pick(op.args)}) if op is not None and op.args else None


def replace_kind(case: Case, c: Choices) -> Case | None:
    """Another operation in the place of one, on the same arguments."""
    op = _any_op(case, c)
    if op is None:
        return None
    types = types_of(case)
    kinds = [k for k in _KINDS if k != op.kind and OPS[k].arity[0] <= len(op.args) <= OPS[k].arity[1]]
    if not kinds:
        return None
    kind = c.pick(kinds)
    spec = OPS[kind]
    kept = {name: value for name, value in op.attrs if name in spec.attributes}
    attrs = attributes.draw(c, spec, case, [types[a] for a in op.args])
    return with_op(case, op, make_op(op.name, kind, op.args, {**attrs, **kept}))


def change_attribute(case: Case, c: Choices) -> Case | None:
    """One attribute of one operation drawn anew."""
    op = _any_op(case, c)
    if op is None or not OPS[op.kind].attributes:
        return None
    types = types_of(case)
    attrs = attributes.changed(c, OPS[op.kind], dict(op.attrs), case, [types[a] for a in op.args])
    return with_op(case, op, make_op(op.name, op.kind, op.args, attrs))


def rewire(case: Case, c: Choices) -> Case | None:
    """An operation that reads another value of the same number of axes."""
    op = _any_op(case, c)
    if op is None or not op.args:
        return None
    types = types_of(case)
    at = c.below(len(op.args))
    rank = types[op.args[at]].rank
    others = [name for name in _defined_before(case, op) if name not in op.args and types[name].rank == rank]
    if not others:
        return None
    return with_op(case, op, replace(op, args=(*op.args[:at], c.pick(others), *op.args[at + 1 :])))


def return_more(case: Case, c: Choices) -> Case | None:
    """A value returned beside the others, or one of several returned no more."""
    if len(case.returns) > 1 and c.chance(0.5):
        gone = c.pick(case.returns)
        return replace(case, returns=tuple(r for r in case.returns if r != gone))
    others = [op.name for op in case.ops if op.name not in case.returns]
    return replace(case, returns=(*case.returns, c.pick(others))) if others else None


def _any_op(case: Case, c: Choices) -> Op | None:
    return c.pick(case.ops) if case.ops else None


def _defined_before(case: Case, reader: Op | None) -> list[str]:
    def names() -> Iterator[str]:
        yield from (i.name for i in case.inputs)
        for op in case.ops:
            if op is reader:
                return
            yield op.name

    return list(names())
