"""What a case costs to judge, estimated from its sizes."""

import math

from generators.program.case import Case
from generators.program.type_check import types_of

LARGE = 1_000_000
"""Elements from which on a case is large, as three of a hundred are; half of all have fewer than 20,000."""


def count_elements(case: Case) -> int:
    """The elements of all values of a call. Time and memory of eager, references and compiled code grow with them."""
    return sum(math.prod(kind.sizes(case.sizes)) for kind in types_of(case).values())


def is_large(case: Case) -> bool:
    """Whether a campaign limits the time that the case and its like get."""
    return count_elements(case) >= LARGE
