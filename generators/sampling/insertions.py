"""Inserts operations on a value of a drawn case."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from generators.errors import require
from generators.program.case import Case
from generators.program.edits import redirect_reads
from generators.program.indices import find_undefined_writes
from generators.program.type_check import types_of
from generators.reasons import Reason
from generators.sampling.builder import Builder
from generators.sampling.choices import Choices

Writer = Callable[[Builder, Choices, str, Sequence[str]], str]
"""Adds operations on a value, beside all floating values. Returns the name of the result; raises CaseError."""
_READ_SHARE = 0.6  # the share of results that later operations read in the value's place, where they fit
_RETURNED_SHARE = 0.3  # the share of results that a case returns though later operations read them


def insert(case: Case, c: Choices, write: Writer, *, alone: float = 0.0, ends: bool = False) -> Case:
    """The case with what `write` adds on a random floating value. Raises CaseError if that does not fit.

    alone: how likely it takes the place of all other operations: then fewer compile and have to shrink
    ends: whether all added values that nothing reads are returned, and not the result alone
    """
    is_alone = c.chance(alone)
    place = 0 if is_alone else c.below(len(case.ops) + 1)
    b = Builder.reopen(case, place)
    before, floats = len(b.ops), b.list_floats()
    require(bool(floats), "there is nothing to compute with")
    value = c.pick(floats)
    made = write(b, c, value, floats)
    is_alone = is_alone and (b.is_float(made) or not case.may_train)
    later = () if is_alone else case.ops[place:]
    alike = b.types[made].sizes(b.dims) == b.types[value].sizes(b.dims) and b.dtype_of(made) == b.dtype_of(value)
    if alike and c.chance(_READ_SHARE):
        later = tuple(redirect_reads(op, {value: made}) for op in later)
    read = {name for op in (*b.ops[before:], *later) for name in op.args}
    returns = [op.name for op in b.ops[before:] if ends and op.name not in read]
    if made not in read or c.chance(_RETURNED_SHARE):
        returns.append(made)
    changed = b.close(replace(case, contracts=()), (*(() if is_alone else case.returns), *returns), later)
    require(any(op.name == made for op in changed.ops), "nothing reads the result", Reason.UNREAD)
    require(not find_undefined_writes(changed, types_of(changed)), "writes twice into one place", Reason.WRITTEN_TWICE)
    return changed
