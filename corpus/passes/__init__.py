"""The shrinker's passes. Each takes a case and gives simpler candidates; whether one still fails is not its concern."""

from collections.abc import Callable, Iterator

from corpus.passes import attributes, contracts, dimensions, modes, names, numbers, program, tensors
from generators.program.case import Case

Pass = Callable[[Case], Iterator[Case]]

PASSES: tuple[Pass, ...] = (
    program.return_less,
    modes.plainer_mode,
    program.cut_to_inputs,
    program.bypass,
    program.share,
    program.compose,
    dimensions.smaller_dims,
    dimensions.smaller_numbers,
    attributes.default_attributes,
    attributes.plainer_kinds,
    modes.float32,
    tensors.plainer_inputs,
    tensors.merge_inputs,
    tensors.drop_axes,
    dimensions.merge_dims,
    numbers.rounder_numbers,
    names.renamed_values,
)
"""In the order they are tried: what removes most, and what makes every later probe cheaper, first."""

_DIMENSIONS = (dimensions.bisected_together, *(dimensions.bisected_dim(at) for at in range(8)))
_before, _after = (PASSES.index(dimensions.smaller_dims), PASSES.index(dimensions.smaller_dims) + 1)
CONTRACT_PASSES: tuple[Pass, ...] = (contracts.plainer_contract, *PASSES[:_before], *_DIMENSIONS, *PASSES[_after:])
"""Those for a failure of an attention function, which knows of a case what its contract says and nothing else: it is
respelled first, and sizes, at the edges of tiles for all we know, are bisected."""
