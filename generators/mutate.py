"""A case a step beside another one."""

from collections.abc import Sequence
from dataclasses import replace

from generators.case import Case
from generators.choices import Choices
from generators.errors import CaseError
from generators.program import check

_ATTEMPTS = 8
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32)


def mutate(case: Case, c: Choices, others: Sequence[Case] = ()) -> Case:
    """A valid case that differs from `case` in the size of one dimension, or else in its mode."""
    for _ in range(_ATTEMPTS if case.dims else 0):
        name, _size = c.pick(case.dims)
        sizes = (*_SIZES, *(size for other in (case, *others) for _, size in other.dims))
        changed = replace(case, dims=tuple((n, c.pick(sizes) if n == name else size) for n, size in case.dims))
        try:
            check(changed)
        except CaseError:
            continue
        if changed != case:
            return changed
    return replace(case, mode="inference" if case.training else "training")
