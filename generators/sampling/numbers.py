"""Adds numbers to the arguments of a case, and later calls with other numbers."""

import math
from dataclasses import replace
from functools import partial

from generators.errors import require
from generators.program.case import Case, LaterCall, Number, NumberUse, NumberValue
from generators.program.edits import make_name, prune_if_valid
from generators.program.numbers import FORMULAS, compute
from generators.program.ops import OPS, complete_attributes, make_op
from generators.program.ops.spec import Kind
from generators.program.sizes import Size
from generators.sampling.builder import draw_valid
from generators.sampling.calls import draw_sizes
from generators.sampling.choices import Choices
from generators.sampling.operations import DRAWN, add_operation

_NUMBERED = {
    Kind.NUMBER: ("float", "float", "int"),
    Kind.BOUND: ("float", "int"),
    **dict.fromkeys((Kind.INT, Kind.SIZE, Kind.AXIS), ("int",)),
    Kind.FLAG: ("bool",),
}
"""By kind of attribute, the types of numbers that may stand for it."""
_WEIGHTS = {Kind.NUMBER: 6.0, Kind.BOUND: 3.0, Kind.INT: 3.0, Kind.SIZE: 3.0, Kind.FLAG: 4.0, Kind.AXIS: 0.3}
"""How often a number stands for an attribute of a kind: nearly all operations have an axis."""
_WITH_NUMBERS = tuple(
    kind
    for kind in DRAWN
    if any(one.kind in _NUMBERED and one.kind is not Kind.AXIS for one in OPS[kind].attributes.values())
)
_VALUES: dict[str, tuple[NumberValue, ...]] = {
    "float": (0.5, 2.0, 1.0, -1.5, 0.25, 3.0, 0.0, 1e-3, 0.3, -0.0, math.inf, -math.inf, math.nan),
    "int": (2, 3, 1, 0, -1, -2, 5, -3, 4, 7),
    "bool": (True, False),
}
"""By type: numbers that torch specialises on, integers that divide and do not, values that a float can become."""
_HINTS = {"other": "factor", "min": "least", "max": "most"}
"""Names of numbers, where the name of the attribute does not tell or is taken."""
_FORMULAS_SHARE = 0.3
_KEPT_SHARE = 0.5  # the share of numbers whose first value is that of the program
_GIVEN_SHARE = 0.7  # the share of numbers that stand for an attribute that the program gives
_NEW_SHARE = 0.7  # the share of cases that get more operations with numbers
_ALONE_SHARE = (
    0.6  # the share of cases that return nothing but what numbers decide: dropout after it takes 30 s to judge
)
_COUNTS = {1: 6.0, 2: 3.0, 3: 1.0}
_CALLS = {1: 2.0, 2: 4.0, 3: 2.0}
_CHANGED_SHARE = 0.8  # the share of numbers that a call changes
_SIZES_SHARE = 0.2
_OTHER_SHARE = 0.3
_DYNAMIC_SHARE = 0.2
_RETYPED_SHARE = 0.1  # the share of changed numbers that become an integer for a float, or a float for an integer
_TRIES = 12  # draws of a number or a call, 3 ms each


def add_numbers(case: Case, c: Choices) -> Case:
    """The case with one to three numbers as arguments, and later calls with other numbers. Unchanged if a few tries
    find no attributes that may vary."""
    base = replace(case, contracts=(), calls=(), checkpoint="", dynamic=c.chance(_DYNAMIC_SHARE))
    if c.chance(_NEW_SHARE):
        for _ in range(c.draw(_COUNTS)):
            base = draw_valid(base, partial(add_operation, c=c, kinds=_WITH_NUMBERS))
    for _ in range(c.draw(_COUNTS)):
        base = draw_valid(base, partial(_add_number, c=c), _TRIES)
    if c.chance(_ALONE_SHARE):
        numbered = tuple(dict.fromkeys(use.op for number in base.numbers for use in number.uses))
        base = prune_if_valid(replace(base, returns=numbered or base.returns)) or base
    for _ in range(c.draw(_CALLS)):
        base = draw_valid(base, partial(_add_call, c=c), _TRIES if base.numbers else 0)
    return base if any(call.numbers for call in base.calls) else case


def _add_number(case: Case, c: Choices) -> Case:
    """Raises CaseError."""
    named = {(use.op, use.attribute) for number in case.numbers for use in number.uses}
    places = [
        (op, name)
        for op in case.ops
        for name, attribute in OPS[op.kind].attributes.items()
        if attribute.kind in _NUMBERED and (op.name, name) not in named
    ]
    given = [(op, name) for op, name in places if name in dict(op.attrs)]
    places = given if given and c.chance(_GIVEN_SHARE) else places
    require(bool(places), "no operation has a number")
    kinds = {OPS[op.kind].attributes[name].kind for op, name in places}
    kind = c.draw({one: weight for one, weight in _WEIGHTS.items() if one in kinds})
    op, name = c.pick([(op, name) for op, name in places if OPS[op.kind].attributes[name].kind is kind])
    formula = c.pick(tuple(FORMULAS)) if c.chance(_FORMULAS_SHARE) else ""
    value = c.pick(_VALUES[c.pick(_NUMBERED[kind])])
    old = complete_attributes(op)[name]
    old = old.constant if isinstance(old, Size) else old
    if not formula and isinstance(old, int | float) and c.chance(_KEPT_SHARE):
        value = old
    changed = make_op(op.name, op.kind, op.args, {**dict(op.attrs), name: compute(value, formula)})
    number = Number(make_name(case, _HINTS.get(name, name)), value, (NumberUse(op.name, name, formula),))
    ops = tuple(changed if other is op else other for other in case.ops)
    return replace(case, ops=ops, numbers=(*case.numbers, number))


def _add_call(case: Case, c: Choices) -> Case:
    numbers = tuple((one.name, _draw_value(one.value, c)) for one in case.numbers if c.chance(_CHANGED_SHARE))
    sizes = draw_sizes(case, c) if c.chance(_SIZES_SHARE) else ()
    values = "other" if c.chance(_OTHER_SHARE) else "equal"
    return replace(case, calls=(*case.calls, LaterCall(sizes=sizes, values=values, numbers=numbers)))


def _draw_value(value: NumberValue, c: Choices) -> NumberValue:
    kind = type(value).__name__
    if kind != "bool" and c.chance(_RETYPED_SHARE):
        kind = "int" if kind == "float" else "float"
    return c.pick([other for other in _VALUES[kind] if repr(other) != repr(value)])
