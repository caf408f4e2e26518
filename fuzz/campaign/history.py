"""Finds the earlier cases that a failure needs, if a fresh process does not show it with the case alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from generators.program.case import Case, Earlier
from generators.program.type_check import types_of

_MOST_REPEATS = 16
"""How often a case is repeated in one process."""
_FIRST, _GROWTH = (1, 3, 8), 8
"""The numbers of cases that are tried first, and the factor by which the last of these grows."""

Fails = Callable[[Case], bool]
"""Whether a case fails: after its earlier cases in a new process, or without any in the running process."""


def find_repeats(case: Case, fails: Fails, is_time_up: Callable[[], bool]) -> Case | None:
    """The case after as many runs of itself as it needs to fail; None if no number of runs makes it fail.

    The process must be new, and have judged the case once.
    """
    for times in range(1, _MOST_REPEATS):
        if is_time_up():
            break
        repeated = replace(case, before=(Earlier(case, times),))
        if fails(case) and fails(repeated):
            return repeated
    return None


def find_earlier(case: Case, history: Sequence[Case], fails: Fails, is_time_up: Callable[[], bool]) -> Case | None:
    """The case after those cases of its history that it needs to fail; None if it does not fail after all of them.

    First come the cases that share the rarest shapes and dtypes with the case, since caches have such keys. Then come
    the last cases of the history, ever more of them. Of the cases that suffice halves are left out, then quarters.
    """

    def add(earlier: Sequence[Case]) -> Case:
        return replace(case, before=tuple(map(Earlier, earlier)))

    def list_tries() -> Iterator[Sequence[Case]]:
        shared = [_list_traits(case) & _list_traits(one) for one in history]
        frequency = Counter(chain.from_iterable(shared))
        likeness = [sum(1 / frequency[trait] for trait in traits) for traits in shared]
        similar = sorted(range(len(history)), key=likeness.__getitem__)
        for count in dict.fromkeys(min(count, len(history)) for count in _FIRST):
            yield [history[number] for number in sorted(similar[-count:])]
        while count < len(history):
            yield history[-count:]
            count *= _GROWTH
        yield history

    tries = (some for some in list_tries() if some and not is_time_up())
    needed = next((some for some in tries if fails(add(some))), ())
    size = len(needed)
    while size > 1:
        size = max(1, min(size, len(needed)) // 2)
        for at in reversed(range(0, len(needed), size)):
            fewer = (*needed[:at], *needed[at + size :])
            if fewer and not is_time_up() and fails(add(fewer)):
                needed = fewer
    return add(needed) if needed else None


def _list_traits(case: Case) -> set[object]:
    types = types_of(case).values()
    return {*(one.sizes(case.sizes) for one in types), *(one.dtype for one in types)}
