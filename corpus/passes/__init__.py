"""The shrinker's passes. Each takes a case and gives simpler candidates; whether one still fails, or is a well-typed
program, is not its concern."""

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
"""In the order they are tried: what removes most, and what makes every later probe cheaper, first."""

CONTRACT_PASSES: tuple[Pass, ...] = (contracts.simplify_contract, *PASSES)
"""Those for a failure of an attention function, which knows of a case what its contract says and nothing else: it is
respelled first."""
