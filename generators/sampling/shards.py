"""Splits the inputs of a case over two ranks, or over a mesh of 2 x 2 ranks."""

from dataclasses import replace

from generators.program.case import Case, Input, Op
from generators.program.edits import map_inputs, resize
from generators.program.ops import make_op
from generators.program.type_check import is_valid, types_of
from generators.program.writes import is_written
from generators.sampling.choices import Choices

_EVEN_SHARE = 0.85  # the share of sharded cases in which all sizes are even
_TOGETHER_SHARE = 0.5  # the share of sharded cases in which the axes of one dimension are split
_INPUT_SHARE = {True: 0.9, False: 0.5}  # the share of inputs that are split, if together and if not
_MESH_SHARE = 0.4  # the share of sharded cases on a mesh: four ranks take twice the time of two
_MOVED_SHARE = 0.15  # the share of values that are laid out anew within a program without writes


def add_shards(case: Case, c: Choices) -> Case:
    """The case with axes of its inputs split over ranks, unless it has such inputs.

    The axes are any, or those of one dimension: heads, batch, sequence, features of a weight. On a mesh this holds for
    each of its dimensions. Some values within the program are laid out anew.
    """
    if any(item.shards != (None, None) or item.part for item in case.inputs):
        return case
    has_mesh = c.chance(_MESH_SHARE)
    ranks = 4 if has_mesh else 2
    if c.chance(_EVEN_SHARE):  # DTensor refuses many views of an axis that the ranks can't share evenly
        case = resize(case, {name: size + (-size % ranks if size > 1 else 0) for name, size in case.dims}) or case
    for second in (False, True)[: 1 + has_mesh]:
        case = _split_inputs(case, c, second=second)
    return case if is_written(case) else _move_values(case, c, has_mesh=has_mesh)


def _split_inputs(case: Case, c: Choices, *, second: bool) -> Case:
    names = [name for name, size in case.dims if size > 1]
    name = c.pick(names) if names and c.chance(_TOGETHER_SHARE) else ""

    def split(item: Input) -> Input:
        axes = [axis for axis, size in enumerate(item.shape) if size.value(case.sizes) > 1]
        axes = [axis for axis in axes if name in item.shape[axis].names()][:1] if name else axes
        if not axes or not c.chance(_INPUT_SHARE[bool(name)]):
            return item
        return replace(item, second_shard=c.pick(axes)) if second else replace(item, shard=c.pick(axes))

    return map_inputs(case, split)


def _move_values(case: Case, c: Choices, *, has_mesh: bool) -> Case:
    """The case with `redistribute` after some of its operations."""
    types, ops, moved = types_of(case), list[Op](), dict[str, str]()
    for op in case.ops:
        ops.append(replace(op, args=tuple(moved.get(arg, arg) for arg in op.args)))
        if not c.chance(_MOVED_SHARE):
            continue
        axes = (None, *range(types[op.name].rank))
        shards = {"shard": c.pick(axes)} | ({"second_shard": c.pick(axes)} if has_mesh else {})
        ops.append(make_op(f"{op.name}_moved", "redistribute", (op.name,), shards))
        moved[op.name] = ops[-1].name
    returns = tuple(moved.get(name, name) for name in case.returns)
    made = replace(case, ops=tuple(ops), returns=returns)
    return made if is_valid(made) else case
