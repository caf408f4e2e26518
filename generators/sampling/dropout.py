"""Adds dropout to a case, and shows what it drops."""

from dataclasses import replace

from generators.program import edits
from generators.program.case import Case
from generators.program.emit import find_rate
from generators.program.ops import make_op
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

_PRODUCTS = ("matmul", "bmm", "einsum")
_PASSED_THROUGH = ("cast", "type_as", "to_own_dtype", "view", "reshape")
_RATE = 0.1
_RATES = (0.1, 0.5, 0.9)


def add_dropout(case: Case) -> Case:
    """The case with active dropout: its own, or a new dropout between softmax and product."""
    own = [op.name for op in case.ops if op.kind == "dropout"]
    if own:
        ops = (make_op(op.name, "dropout", op.args, {"p": _RATE}) if op.name in own else op for op in case.ops)
        return replace(case, ops=tuple(ops), contracts=edits.list_unaffected(case, own))
    for softmax in [op.name for op in case.ops if op.kind == "softmax"]:
        weights = softmax
        while step := next((op for op in case.ops if op.args[:1] == (weights,) and op.kind in _PASSED_THROUGH), None):
            weights = step.name
        products = [place for place, op in enumerate(case.ops) if weights in op.args and op.kind in _PRODUCTS]
        if products:
            dropped = make_op(edits.make_name(case, "dropped"), "dropout", (weights,), {"p": _RATE})
            after = (
                edits.redirect_reads(op, {weights: dropped.name}) if op.kind in _PRODUCTS else op
                for op in case.ops[products[0] :]
            )
            case = replace(case, ops=(*case.ops[: products[0]], dropped, *after), contracts=())
    return case


def show_dropouts(case: Case, c: Choices) -> Case:
    """The case with one or two more dropouts, which returns the argument and the result of every dropout: its masks."""
    b = Builder.reopen(case)
    floats = b.list_floats()
    for name in [c.pick(floats) for _ in range(c.draw({1: 2.0, 2: 1.0}))] if floats else []:
        b.op("dropout", name, to="dropped", p=c.pick(_RATES), form=c.pick(("module", "functional")))
    drawn = [
        name for op in b.ops if op.kind == "dropout" and 0 < find_rate(case, op) < 1 for name in (op.args[0], op.name)
    ]
    return b.close(case, (*case.returns, *drawn))
