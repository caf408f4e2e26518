"""Adds regions to a case: runs of its operations that become functions of their own.

Some are repeated with a change, as layers of one class differ in a flag or a number."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from generators.errors import CaseError
from generators.program.case import AUTOCAST, Attr, Case, Op, Region
from generators.program.edits import make_name
from generators.program.ops import OPS, make_op
from generators.program.ops.spec import Attribute, Kind
from generators.program.references import rename
from generators.program.regions import FUNCTION, REGIONS, SHARED, list_alike, list_operands, list_results, ops_of
from generators.program.type_check import attributes, types_of
from generators.sampling.builder import draw_valid
from generators.sampling.choices import Choices
from generators.sampling.writes import insert_write

_LENGTHS = {1: 3.0, 2: 3.0, 3: 2.0, 5: 2.0, 8: 2.0, 13: 1.0}
_TRIES = 12
_WRITE_TRIES = 6
_NESTED_SHARE = 0.5  # the share of further regions that are drawn inside of a region

_AROUND = {
    "autograd_function": ("grad", "vjp", "jacrev", "grad_of_grad", "jvp", "vmap"),
    "functionalize": ("grad", "vjp", "jvp", "vmap"),
    **dict.fromkeys(("jvp", "vjp"), ("functionalize",)),
    "autocast": ("autocast",),
}
"""Regions that people put around regions, by the kind within."""
_AROUND_SHARE = 0.3
_OPTIONS = {"closure": 0.3, "layer_in_layer": 0.3}
"""Weights of options, of others 1: torch 2.13.0 and 2.15.0 have a known bug of these two."""
_CAST = frozenset({"matmul", "bmm", "einsum", "linear", "sdpa", "addmm", "baddbmm"})
"""Operations that autocast runs in its dtype."""
_OF_WRITES = "functionalize"
_ABOUT: dict[str, Callable[[Op], bool]] = {
    _OF_WRITES: lambda op: OPS[op.kind].writes,
    "autocast": lambda op: op.kind in _CAST,
}
"""The operations that a kind is about. Of 85 drawn regions of functionalize 3 had a write."""
_TRAINED_SHARE = 0.7
"""The share of cases in inference that train if they get an autograd.Function, whose rule gives gradients."""
_ABOUT_SHARE = 0.8  # the share of such regions around such an operation


def add_region(case: Case, c: Choices, kinds: Collection[str] = REGIONS) -> Case:
    """The case with a region of one of these kinds. Unchanged if a few tries find no operations that the kind takes."""
    kind = c.draw(
        {name: REGIONS[name].weight * (REGIONS[name].in_training if case.training else 1.0) for name in kinds}
    )
    base = replace(case, contracts=())
    if kind == _OF_WRITES:
        base = draw_valid(base, partial(insert_write, c=c), _WRITE_TRIES)
    made = draw_valid(base, partial(_add_region, c=c, kind=kind), _TRIES if base.ops else 0)
    return case if made.regions == case.regions else made


def _add_region(case: Case, c: Choices, kind: str) -> Case:
    if kind == FUNCTION and not case.training and c.chance(_TRAINED_SHARE):
        case = replace(case, mode="training")
    around = c.pick(case.regions).ops if case.regions and c.chance(_NESTED_SHARE) else ()
    within = around or [op.name for op in case.ops]
    start, length = c.below(len(within)), c.draw(_LENGTHS)
    about = [op.name for op in case.ops if kind in _ABOUT and op.name in within and _ABOUT[kind](op)]
    if about and c.chance(_ABOUT_SHARE):
        start = max(0, within.index(c.pick(about)) - c.below(length))
    names = [str(item.shape[0]) for item in case.inputs if item.shape and item.shape[0].is_name]
    over = c.pick(names) if names and REGIONS[kind].loops else ""
    region = Region(kind, tuple(within[start : start + length]), over, _draw_option(kind, c))
    outer = [_wrap(region, c, names)] if not around and kind in _AROUND and c.chance(_AROUND_SHARE) else []
    drawn = replace(case, regions=(*case.regions, *outer, region))
    return _repeat(drawn, region, c) if region.option in SHARED else drawn


def _draw_option(kind: str, c: Choices) -> str:
    return c.draw({option: _OPTIONS.get(option, 1.0) for option in REGIONS[kind].options})


def _wrap(region: Region, c: Choices, names: Sequence[str]) -> Region:
    """A transform of the same operations, or an autocast that is on."""
    kind = c.pick(_AROUND[region.kind])
    over = c.pick(names) if names and REGIONS[kind].loops else ""
    return Region(kind, region.ops, over, c.pick(AUTOCAST) if kind == "autocast" else REGIONS[kind].options[0])


_CHAINED_SHARE = 0.7  # the share of repeats that read the first's result, if it has the type of its argument
_CAST_SHARE = 0.15  # the share of repeats under an autocast of their own
_ALIKE = ("sin", "cos", "tanh", "sigmoid", "relu", "neg", "exp", "abs", "square")
"""Operations that may stand for each other: layers may differ in their activation."""


def _repeat(case: Case, region: Region, c: Choices) -> Case:
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
