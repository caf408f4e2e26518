"""What a pass of the shrinker is."""

from collections.abc import Callable, Iterator
from functools import wraps

from generators.program.case import Case
from generators.program.edits import valid

Pass = Callable[[Case], Iterator[Case]]


def well_typed(one_pass: Pass) -> Pass:
    """The pass without candidates that are no programs; the others lose what they no longer need."""

    @wraps(one_pass)
    def checked(case: Case) -> Iterator[Case]:
        for candidate in one_pass(case):
            smaller = valid(candidate)
            if smaller is not None:
                yield smaller

    return checked
