"""Changes of the rules by which DTensor splits operations over ranks."""

from typing import Any


def keep_shards(_normalize: Any) -> Any:
    """A softmax over a split axis runs on each part by itself: DTensor takes its axis for -1, which no shard has."""
    return lambda _axis, _rank: -1


def forget_offset(mask: Any) -> Any:
    """Every rank takes its rows of an embedding for the first rows."""
    return lambda indices, _offset, size: mask(indices, 0, size)


def keep_partial(_reduce: Any) -> Any:
    """A rank takes its part of a sum for the sum."""
    return lambda _self, value, _mesh, _axis: value


def keep_second_partial(reduce: Any) -> Any:
    """A rank takes its part of a sum over the second dimension of a mesh for the sum."""
    return lambda self, value, mesh, axis: value if axis else reduce(self, value, mesh, axis)


def reverse_moved_shard(move: Any) -> Any:
    """A part that moves to another axis, over the second dimension of a mesh, is reversed along its old axis."""

    def move_wrongly(self: Any, tensor: Any, mesh: Any, mesh_dim: int, *shapes: Any) -> Any:
        moved = move(self, tensor, mesh, mesh_dim, *shapes)
        return moved.flip(self.dim) if mesh_dim else moved

    return move_wrongly
