"""Fewer and simpler numbers among the arguments of forward."""

from collections.abc import Iterator
from dataclasses import replace

from corpus.passes.program import drop_each
from generators.program.case import Case, NumberUse
from generators.program.edits import swap
from generators.program.numbers import compute


def drop_numbers(case: Case) -> Iterator[Case]:
    """Put all numbers that forward takes into the program, then each; drop a use; leave out the formula of a use."""
    for kept in ((), *(drop_each(case.numbers) if len(case.numbers) > 1 else ())) if case.numbers else ():
        yield replace(case, numbers=kept)
    for at, number in enumerate(case.numbers):
        for uses in drop_each(number.uses) if len(number.uses) > 1 else ():
            yield replace(case, numbers=swap(case.numbers, at, replace(number, uses=uses)))
        if any(use.formula for use in number.uses):
            yield from _without_formulas(case, at)


def _without_formulas(case: Case, at: int) -> Iterator[Case]:
    """The case whose number is what a formula computes of it, in every call."""
    number = case.numbers[at]
    for use in number.uses:
        plain = replace(number, uses=(NumberUse(use.op, use.attribute),))
        calls = (
            replace(
                call, numbers=tuple((n, compute(v, use.formula) if n == number.name else v) for n, v in call.numbers)
            )
            for call in case.calls
        )
        numbers = swap(case.numbers, at, replace(plain, value=compute(number.value, use.formula)))
        yield replace(case, numbers=numbers, calls=tuple(calls))
