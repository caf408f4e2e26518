"""Splits the inputs of a case over two ranks."""

from dataclasses import replace

from generators.program.case import Case, Input
from generators.program.edits import map_inputs, resize
from generators.sampling.choices import Choices

_EVEN_SHARE = 0.85  # the share of sharded cases in which all sizes are even
_TOGETHER_SHARE = 0.5  # the share of sharded cases in which the axes of one dimension are split
_INPUT_SHARE = {True: 0.9, False: 0.5}  # the share of inputs that are split, if together and if not


def add_shards(case: Case, c: Choices) -> Case:
    """The case with axes of its inputs split over ranks, unless it has such inputs.

    The axes are any, or those of one dimension: heads, batch, sequence, features of a weight.
    """
    if any(item.shard is not None for item in case.inputs):
        return case
    if c.chance(_EVEN_SHARE):  # DTensor refuses many views of an axis that two ranks can't share evenly
        case = resize(case, {name: size + (size % 2 if size > 1 else 0) for name, size in case.dims}) or case
    names = [name for name, size in case.dims if size > 1]
    name = c.pick(names) if names and c.chance(_TOGETHER_SHARE) else ""

    def split(item: Input) -> Input:
        axes = [axis for axis, size in enumerate(item.shape) if size.value(case.sizes) > 1]
        axes = [axis for axis in axes if name in item.shape[axis].names()][:1] if name else axes
        return replace(item, shard=c.pick(axes)) if axes and c.chance(_INPUT_SHARE[bool(name)]) else item

    return map_inputs(case, split)
