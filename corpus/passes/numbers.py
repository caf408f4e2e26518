"""Fewer and simpler numbers among the arguments of forward."""

from collections.abc import Iterator
from dataclasses import replace

from corpus.passes.program import drop_each
from generators.program.case import Case
from generators.program.edits import compute_before, swap


def drop_numbers(case: Case) -> Iterator[Case]:
    """Put all numbers that forward takes into the program, then each; drop a use; compute a formula before."""
    for kept in ((), *(drop_each(case.numbers) if len(case.numbers) > 1 else ())) if case.numbers else ():
        yield replace(case, numbers=kept)
    for at, number in enumerate(case.numbers):
        for uses in drop_each(number.uses) if len(number.uses) > 1 else ():
            yield replace(case, numbers=swap(case.numbers, at, replace(number, uses=uses)))
    for formula in {use.formula: None for number in case.numbers for use in number.uses if use.formula}:
        yield compute_before(case, formula)
