"""The order of simplicity over cases, which shrinking follows."""

from dataclasses import fields

from generators.program.calls import CALL_WORDS
from generators.program.case import AROUND, MODES, Case, Input, LaterCall, Number, Op
from generators.program.given import Given
from generators.program.numbers import FORMULAS
from generators.program.ops import OPS, same_attr
from generators.program.regions import REGIONS
from generators.program.roles import plain_names
from generators.program.sizes import Size
from generators.program.type_check import attributes
from generators.program.values import DISTRIBUTIONS, LAYOUTS

_DTYPE_RANK = {"float32": 0, "bool": 1, "int64": 2}


def sort_key(case: Case) -> tuple[float, ...]:
    """Smaller is simpler: the first element that differs decides. With equal keys neither case is simpler."""
    return (
        len(case.before),
        sum(earlier.times for earlier in case.before),
        len(case.settings),
        len(case.calls),
        sum(map(_count_differences, case.calls))
        + sum(map(_count_uses, case.numbers))
        + 2 * bool(case.checkpoint)
        + len(case.setup),
        len(case.regions),
        sum(OPS[op.kind].writes for op in case.ops),
        len(case.ops),
        len(case.returns),
        len(case.inputs),
        MODES.index(case.mode),
        case.dynamic,
        (case.autocast is not None)
        + 2 * case.has_around
        + ("", *AROUND).index(case.around) / 10
        + case.around_backward,
        sum(OPS[op.kind].cost for op in case.ops),
        sum(len(region.ops) for region in case.regions),
        sum(
            REGIONS[region.kind].options.index(region.option) + len(region.carries) + region.reverse
            for region in case.regions
        ),
        sum(_attr_cost(op) for op in case.ops),
        sum(_DTYPE_RANK.get(i.dtype, 3) for i in case.inputs),
        sum(_input_cost(i) for i in case.inputs),
        sum(len(i.shape) for i in case.inputs),
        sum(size for _, size in case.dims),
        len(case.dims),
        sum(max(0, (s.constant or 1) - 1) for i in case.inputs for s in i.shape),
        sum(len(str(s)) for i in case.inputs for s in i.shape),
        sum(i.values.seed for i in case.inputs),
        sum(name != plain for name, plain in plain_names(case).items()),
        # Narrower windows and causality from the top left.
        sum(max(0, side) for c in case.contracts for side in c.window or ()),
        sum(c.causal == "bottom_right" for c in case.contracts),
        *(part for earlier in case.before for part in sort_key(earlier.case)),
    )


def _count_differences(call: LaterCall) -> float:
    """How hard a later call is to read: the number and complexity of its differences from the first call."""
    cost: float = 2.0 * sum(getattr(call, field.name) != field.default for field in fields(call)) + len(call.sizes)
    cost += sum(size for _, size in call.sizes) / 1000 + len(call.changes)
    cost += len(call.numbers) + sum(_number_cost(value) for _, value in call.numbers) / 10
    return cost + sum(words.index(getattr(call, name)) / 10 for name, words in CALL_WORDS.items())


def _count_uses(number: Number) -> float:
    """How hard a number is to read: its uses, and the places of their formulas in the table."""
    formulas = [*FORMULAS]
    places = [formulas.index(use.formula) for use in number.uses if use.formula]
    cost = 1 + len(number.uses) + sum(2 + place / len(formulas) for place in places)
    return cost + _number_cost(number.value) / 10


def _attr_cost(op: Op) -> float:
    cost = 0.0
    for name, value in attributes(op).items():
        attribute = OPS[op.kind].attributes[name]
        if not attribute.required and same_attr(value, attribute.default):
            continue
        # The words of an attribute are listed simplest first.
        place = attribute.words.index(value) if isinstance(value, str) and value in attribute.words else 0
        cost += 1 + place
        if isinstance(value, tuple | Size):
            cost += sum(len(str(v)) for v in (value if isinstance(value, tuple) else [value])) / 10
        elif isinstance(value, int | float) and not isinstance(value, bool):
            cost += _number_cost(value)
    return cost


def _number_cost(value: float) -> float:
    """How much a number takes to read: 0 for 0 and 1, little for small integers, more for long numbers."""
    text = repr(value).removesuffix(".0")
    return (len(text) - 1) / 4 + (value < 0) / 4 + (0.1 if abs(value) > 1 else 0.0)


_GIVEN = 100
"""Given values are harder to read than any distribution."""


def _given_cost(given: Given | None) -> float:
    if given is None:
        return 0.0
    return _GIVEN + sum(_number_cost(number) + 0.01 * (number != 0) for number in given.numbers)


def _input_cost(item: Input) -> float:
    return (
        DISTRIBUTIONS[item.values.kind].rank
        + LAYOUTS[item.layout].rank
        + _number_cost(item.values.scale) * DISTRIBUTIONS[item.values.kind].scaled
        + _given_cost(item.values.given)
        + _number_cost(item.values.param)
        + 0.5 * (item.parameter + item.buffer + (not item.requires_grad))
        + sum(1 + shard / 10 for shard in item.shards if shard is not None)
        + (0.0 if item.part is None else 8 + item.part.dim / 10 + item.part.copied + len(str(item.part.start)) / 10)
    )
