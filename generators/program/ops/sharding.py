"""How values are split over ranks within a program: `redistribute`, which changes no number."""

from collections.abc import Mapping

from generators.errors import require
from generators.program.ops.spec import Attribute, Kind, Memory, Operands, OpSpec
from generators.program.sizes import Size

SHARD_FUNCTIONS: Mapping[str, str] = {
    "redistribute": """
def redistribute(x, *shards):
    if not isinstance(x, DTensor):
        return x
    axes = shards[: x.device_mesh.ndim]
    return x.redistribute(placements=[Replicate() if axis is None else Shard(axis) for axis in axes])
"""
}


def _split(call: Operands) -> tuple[Size, ...]:
    for name in _SHARDS:
        axis = call.attrs[name]
        require(axis is None or 0 <= axis < len(call.shape), f"{name} {axis} is no axis of it")
    return call.shape


_SHARDS = {"shard": Attribute(Kind.AXIS), "second_shard": Attribute(Kind.AXIS)}
OPS = [
    OpSpec(
        "redistribute",
        _split,
        takes="all",
        text="redistribute({0}, {shard}, {second_shard})",
        attributes=_SHARDS,
        memory=Memory.VIEW_OR_COPY,  # ranks that have their part already keep it
        saves=False,
    )
]
