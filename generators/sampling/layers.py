"""Repeats a region with a change, as layers of one class differ in a flag or a number."""

from dataclasses import replace

from generators.errors import CaseError
from generators.program.case import Attr, Case, Op, Region
from generators.program.edits import make_name
from generators.program.ops import OPS, make_op
from generators.program.ops.spec import Attribute, Kind
from generators.program.references import rename
from generators.program.regions import REGIONS, list_alike, list_operands, list_results, ops_of
from generators.program.type_check import attributes, types_of
from generators.sampling.choices import Choices

_CHAINED_SHARE = 0.7  # the share of repeats that read the first's result, if it has the type of its argument
_CAST_SHARE = 0.15  # the share of repeats under an autocast of their own
_ALIKE = ("sin", "cos", "tanh", "sigmoid", "relu", "neg", "exp", "abs", "square")
"""Operations that may stand for each other: layers may differ in their activation."""


def repeat_region(case: Case, region: Region, c: Choices) -> Case:
    """The case with a second region that shares the last region's function, and returns its results.

    Raises CaseError if the change leaves the regions without a common function.
    """
    types, results = types_of(case), list_results(case, region)
    taken: list[str] = []
    for name in region.ops:
        taken.append(make_name(case, name, taken))
    names = dict(zip(region.ops, taken, strict=True))
    copies = [rename(op, names) for op in ops_of(case, region)]
    first = next(iter(list_operands(case, region)), None)
    chained = [name for name in results if first is not None and types[name] == types[first]]
    if first is not None and chained and c.chance(_CHAINED_SHARE):
        copies = [replace(op, args=tuple(chained[0] if arg == first else arg for arg in op.args)) for op in copies]
    at = c.below(len(copies))
    copies[at] = _change(copies[at], c)
    end = 1 + max(place for place, op in enumerate(case.ops) if op.name in region.ops)
    returns = (*case.returns, *(names[name] for name in results))
    again = replace(region, ops=tuple(taken))
    cast = [Region("autocast", again.ops, option=c.pick(REGIONS["autocast"].options))] * c.chance(_CAST_SHARE)
    longer = replace(
        case, ops=(*case.ops[:end], *copies, *case.ops[end:]), returns=returns, regions=(*case.regions, *cast, again)
    )
    if again not in list_alike(longer, region, types_of(longer)):
        raise CaseError("the regions are not alike")
    return longer


def _change(op: Op, c: Choices) -> Op:
    """The operation with another value of an attribute, or another of its kind."""
    given, rows = attributes(op), OPS[op.kind].attributes
    found: list[Op] = [replace(op, kind=kind) for kind in _ALIKE if op.kind in _ALIKE and kind != op.kind]
    for name, row in rows.items():
        found += [make_op(op.name, op.kind, op.args, {**given, name: value}) for value in _others(row, given[name])]
    return c.pick(found) if found else op


def _others(row: Attribute, value: Attr) -> list[Attr]:
    if row.kind is Kind.FLAG:
        return [not value]
    if row.kind is Kind.WORD:
        return [word for word in row.words if word != value]
    if row.kind is Kind.NUMBER and isinstance(value, float):
        return [value * 2.0, value + 1.0]
    return []
