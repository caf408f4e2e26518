"""The shrinker's passes: functions from a case to simpler candidates.

The shrinker drops candidates that are no well-typed programs, and asks whether the others still fail.
"""

from collections.abc import Callable, Iterator

from corpus.passes import contracts, dimensions, program, spelling
from generators.program.case import Case

Pass = Callable[[Case], Iterator[Case]]

PASSES: tuple[Pass, ...] = (
    spelling.drop_settings,
    program.drop_calls,
    program.drop_differences,
    program.drop_writes,
    program.return_less,
    spelling.simplify_mode,
    program.cut_to_inputs,
    program.bypass,
    program.share,
    dimensions.shrink_dims,
    spelling.drop_attributes,
    spelling.respell_operations,
    spelling.use_float32,
    dimensions.simplify_inputs,
    dimensions.drop_axes,
    dimensions.merge_dims,
    spelling.round_numbers,
    spelling.rename_values,
)
"""In the order they are tried. First come passes that remove most and make every later probe cheaper."""

CONTRACT_PASSES: tuple[Pass, ...] = (contracts.simplify_contract, *PASSES)
"""For failures of attention functions. These see the contract of a case alone, so it is respelled first."""
