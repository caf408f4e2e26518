"""Numbers that forward takes: which attributes of an imported program they are, found by a run with another number."""

from collections.abc import Mapping
from dataclasses import replace

from fuzz.importing.program import Untranslatable
from fuzz.importing.translate import translate
from fuzz.protocol.recording import Recorded, VariedRun
from generators.errors import CaseError
from generators.program.case import Attr, Case, Number, NumberUse, NumberValue, Op, free_name
from generators.program.numbers import FORMULAS, TAKEN, compute
from generators.program.ops import complete_attributes, same_attr
from generators.program.sizes import Size
from generators.program.type_check import RESERVED, is_valid


def add_numbers(case: Case, recorded: Recorded, refused: Mapping[int, str]) -> tuple[Case, list[str]]:
    """The case with the numbers that forward takes, and the names of numbers that stay constants of the case.

    refused: as for `translate`
    """
    constants = list[str]()
    for varied in recorded.varied:
        uses = _find_uses(case, recorded, refused, varied) if varied.calls else None
        taken = {*case.makers, *(item.name for item in case.inputs), *RESERVED, *TAKEN}
        taken |= {number.name for number in case.numbers}
        number = Number(free_name(varied.name, taken), varied.value, tuple(uses or ()))
        added = replace(case, numbers=(*case.numbers, number))
        if uses and is_valid(added):
            case = added
        elif uses is None or uses:
            constants.append(varied.name)
    return case, constants


def _find_uses(case: Case, recorded: Recorded, refused: Mapping[int, str], varied: VariedRun) -> list[NumberUse] | None:
    """The attributes that differ with the number; None if it changes more, or no formula gives their values."""
    try:
        other = translate(replace(recorded, calls=varied.calls), refused).case()
    except Untranslatable:
        return None
    if [(op.name, op.kind, op.args) for op in case.ops] != [(op.name, op.kind, op.args) for op in other.ops]:
        return None
    uses = list[NumberUse]()
    for before, after in zip(case.ops, other.ops, strict=True):
        now, then = _list_attributes(before), _list_attributes(after)
        for name in now:
            if not same_attr(now[name], then[name]):
                formula = _find_formula((varied.value, now[name]), (varied.other, then[name]))
                if formula is None:
                    return None
                uses.append(NumberUse(before.name, name, formula))
    return uses


def _list_attributes(op: Op) -> dict[str, Attr]:
    given = complete_attributes(op)
    return {name: value.constant if isinstance(value, Size) else value for name, value in given.items()}


def _find_formula(*pairs: tuple[NumberValue, Attr]) -> str | None:
    """The simplest formula that gives each attribute of its number."""

    def gives(formula: str) -> bool:
        try:
            return all(same_attr(compute(number, formula), attribute) for number, attribute in pairs)
        except CaseError:
            return False

    return next(filter(gives, FORMULAS), None)
