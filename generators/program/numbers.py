"""Numbers that forward takes beside tensors: what they are in the program, the rules, and the text.

An operation keeps its attribute. A number names the attribute, so that the text has the name in its place, and
`inputs()` has the value. So everything that reads attributes sees the program of the first call, and
`generators.program.calls.at_call` gives those of later calls.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from generators.errors import CaseError, accepts, add_place, require
from generators.program.case import Attr, Case, LaterCall, NumberUse, NumberValue, Op, TensorType
from generators.program.ops import OPS, PROBABILITIES, complete_attributes, make_op, same_attr
from generators.program.ops.spec import Line
from generators.program.sizes import Size
from generators.reasons import Reason

_MOST = 8
"""How many numbers a case may have."""
TAKEN = frozenset({"seed", "abs", "max", "min", "round", "int", "float", "bool"})
"""Names of no number: those that the text has for an argument of `inputs`, and for functions of Python."""
_LARGEST = 1 << 31
"""Integers are smaller. PyTorch's symbols are of 64 bits, where products of larger integers would overflow."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A row of the table of formulas: what Python computes of a number before an operation gets the result."""

    text: str  # with {n} for the number
    compute: Callable[[NumberValue], NumberValue]  # may raise ArithmeticError


FORMULAS: Mapping[str, Formula] = {
    "": Formula("{n}", lambda n: n),
    "negated": Formula("-{n}", lambda n: -n),
    "absolute": Formula("abs({n})", abs),
    "next": Formula("({n} + 1)", lambda n: n + 1),
    "double": Formula("(2 * {n})", lambda n: 2 * n),
    "half": Formula("({n} // 2)", lambda n: n // 2),
    "rest": Formula("({n} % 3)", lambda n: n % 3),
    "third": Formula("({n} / 3)", lambda n: n / 3),
    "divided": Formula("(7 // {n})", lambda n: 7 // n),
    "negative_divided": Formula("(-7 // {n})", lambda n: -7 // n),
    "low_bits": Formula("({n} & 3)", lambda n: operator.and_(n, 3)),
    "parts": Formula("({n} // 0.3)", lambda n: n // 0.3),
    "inverse": Formula("(1 / {n})", lambda n: 1 / n),
    "square": Formula("({n} ** 2)", lambda n: n**2),
    "at_least_1": Formula("max({n}, 1)", lambda n: max(n, 1)),
    "at_most_2": Formula("min({n}, 2)", lambda n: min(n, 2)),
    "rounded": Formula("round({n})", round),
    "cut": Formula("int({n})", int),
    "as_float": Formula("float({n})", float),
    "above_1": Formula("({n} > 1)", lambda n: n > 1),
    "is_set": Formula("bool({n})", bool),
}
"""By name, simplest first."""


def compute(value: NumberValue, formula: str) -> NumberValue:
    """The value that an operation gets. Raises CaseError if Python computes none."""
    try:
        return FORMULAS[formula].compute(value)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise CaseError(f"{FORMULAS[formula].text.format(n=value)}: {error}") from None


def set_numbers(case: Case, values: Mapping[str, NumberValue]) -> Case:
    """The case with other values of numbers, and of the attributes that they name. Raises CaseError."""
    changed: dict[str, dict[str, Attr]] = {}
    for number in case.numbers:
        for use in number.uses if number.name in values else ():
            changed.setdefault(use.op, {})[use.attribute] = compute(values[number.name], use.formula)
    if not changed:
        return case
    ops = (make_op(op.name, op.kind, op.args, dict(op.attrs) | changed.get(op.name, {})) for op in case.ops)
    numbers = tuple(replace(one, value=values.get(one.name, one.value)) for one in case.numbers)
    return replace(case, ops=tuple(ops), numbers=numbers)


def list_uses(case: Case) -> list[str]:
    """The uses of numbers of the case: names of formulas, and attributes without a formula, such as `mul.other`."""
    return sorted({name_use(case, use) for number in case.numbers for use in number.uses})


def name_use(case: Case, use: NumberUse) -> str:
    """The name of a use in `list_uses`."""
    return use.formula or f"{case.makers[use.op].kind}.{use.attribute}"


def spell_numbers(case: Case, op: Op) -> dict[str, str]:
    """By attribute of the operation, the text of the number that stands for it."""
    return {
        use.attribute: FORMULAS[use.formula].text.format(n=number.name)
        for number in case.numbers
        for use in number.uses
        if use.op == op.name
    }


def check_numbers(case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if numbers do not stand for what operations have."""
    if not case.numbers:
        return
    uses = [(use.op, use.attribute) for number in case.numbers for use in number.uses]
    with add_place("numbers"):
        require(len(case.numbers) <= _MOST, f"{len(case.numbers)} numbers; at most {_MOST}", Reason.SIZE)
        require(not case.contracts, "a case that takes numbers has no contracts", Reason.CONTRACTED)
        require(len({*uses}) == len(uses), "two numbers for one attribute")
    for number in case.numbers:
        with add_place("numbers", number.name):
            _check_value(number.value)
            require(number.name not in TAKEN, "the text has the name for something else")
            require(bool(number.uses), "nothing uses the number")
            for use in number.uses:
                _check_use(case, number.value, use)
    for op in case.ops:
        _spell(case, op, types)


def check_varied(case: Case, call: LaterCall) -> None:
    """Raises CaseError unless a later call gives other values to the numbers of the case."""
    known = {number.name for number in case.numbers}
    for name, value in call.numbers:
        require(name in known, f"{name} is no number of the case")
        _check_value(value)


def check_texts(
    case: Case, types: Mapping[str, TensorType], called: Case, types_called: Mapping[str, TensorType]
) -> None:
    """Raises CaseError if a later call, as a program by itself, has another text."""
    for op, later in zip(case.ops, called.ops, strict=True) if called.numbers != case.numbers else ():
        same = _spell(case, op, types) == _spell(called, later, types_called)
        require(same, f"{op.name} is spelled otherwise with other numbers", Reason.NUMBERS)


def keep_numbers(case: Case) -> Case:
    """The case without uses of numbers that are not true of its operations."""

    def keep(value: NumberValue, uses: tuple[NumberUse, ...]) -> tuple[NumberUse, ...]:
        return tuple(use for use in uses if accepts(_check_use, case, value, use))

    numbers = (replace(one, uses=keep(one.value, one.uses)) for one in case.numbers)
    return replace(case, numbers=tuple(one for one in numbers if one.uses))


def _check_value(value: NumberValue) -> None:
    require(isinstance(value, float) or abs(value) < _LARGEST, f"{value} has more than 31 bits")


def _check_use(case: Case, value: NumberValue, use: NumberUse) -> None:
    require(use.formula in FORMULAS, f"formula is {use.formula!r}, expected one of {', '.join(FORMULAS)[2:]}")
    op = case.makers.get(use.op)
    if op is None or use.attribute not in OPS[op.kind].attributes:
        raise CaseError(f"{use.op}.{use.attribute} is no attribute of an operation")
    is_inside = any(op.name in region.ops for region in case.regions)
    require(not is_inside, f"{op.name} lies in a region, whose function takes no numbers", Reason.NUMBERS)
    drops = use.attribute in PROBABILITIES and (case.may_train or op.attr("active") == "always")
    require(not drops, f"the dropout of {op.name} is active", Reason.NUMBERS)
    given, computed = complete_attributes(op)[use.attribute], compute(value, use.formula)
    given = given.constant if isinstance(given, Size) else given
    require(same_attr(given, computed), f"{use.attribute} of {op.name} is {given}, not {computed}")


def _spell(case: Case, op: Op, types: Mapping[str, TensorType]) -> list[str]:
    """The text of an operation that uses numbers. Raises CaseError if it does not have them all in place."""
    names = spell_numbers(case, op)
    if not names:
        return []
    spec, kinds = OPS[op.kind], [types[arg] for arg in op.args]
    line = Line(op.name, spec, op.args, kinds, complete_attributes(op), "device", names)
    texts = [*spec.before(line), spec.emit(line), spec.emit(line, plain=True)]
    own = spec.init(line) == spec.init(replace(line, names={}))
    # No name of a number occurs in the text without numbers, whose arguments have names of their own.
    shown = all(all(re.search(rf"(?<![\w.]){re.escape(text)}", one) for text in names.values()) for one in texts[-2:])
    require(
        own and shown, f"{op.name}: the text of {op.kind} has no place for {', '.join(names.values())}", Reason.NUMBERS
    )
    return texts
