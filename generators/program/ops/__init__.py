"""The closed table of operations. A case can name these and nothing else."""

from collections.abc import Mapping
from types import MappingProxyType

from generators.program.ops import creating, flex, layers, network, pointwise, products, shaping, writing
from generators.program.ops.spec import OpSpec

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        spec.kind: spec
        for module in (shaping, pointwise, network, products, creating, layers, flex, writing)
        for spec in module.OPS
    }
)
