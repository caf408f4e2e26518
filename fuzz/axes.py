"""What the axes of an output are where no contract names it: read off the operations that made it."""

from generators.program.case import Case, Op
from generators.program.type_check import attributes

BATCH, HEAD, QUERY, KEY, FEATURE = "batch", "head", "query row", "key row", "feature"

_SAME = frozenset({"contiguous", "clone", "dropout", "cast", "type_as"})
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_PRODUCTS = frozenset({"matmul", "bmm"})
_BY_RANK = {3: (BATCH, QUERY, FEATURE), 4: (BATCH, HEAD, QUERY, FEATURE)}


def find_attention_axes(case: Case, name: str, rank: int) -> tuple[str, ...]:
    """The axes of a value that is weights times values, or that with axes swapped; () where it is something else."""
    made = {op.name: op for op in case.ops}
    moves: list[Op] = []
    while name in made and rank in _BY_RANK:
        op = made[name]
        if op.kind in ("transpose", "mT", "permute"):
            moves.append(op)
        elif op.kind == "sdpa" or (op.kind in _PRODUCTS and _is_weights(made, op.args[0])):
            axes = _BY_RANK[rank]
            for move in reversed(moves):
                axes = _moved(axes, move)
            return axes
        elif op.kind not in _SAME:
            break
        name = op.args[0]
    return ()


def _is_weights(made: dict[str, Op], name: str) -> bool:
    while name in made and made[name].kind in _SAME:
        name = made[name].args[0]
    return name in made and made[name].kind in _SOFTMAX


def _moved(axes: tuple[str, ...], op: Op) -> tuple[str, ...]:
    if op.kind == "permute":
        dims = attributes(op)["dims"]
        assert isinstance(dims, tuple)
        return tuple(axes[int(str(dim))] for dim in dims)
    first, second = (-2, -1) if op.kind == "mT" else (int(str(attributes(op)[key])) for key in ("dim0", "dim1"))
    swapped = list(axes)
    swapped[first], swapped[second] = axes[second], axes[first]
    return tuple(swapped)
