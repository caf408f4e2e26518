"""The closed table of operations. A case can name these and nothing else."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from generators.program.case import Op
from generators.program.ops import (
    attention,
    constants,
    network,
    pointwise,
    recurrence,
    reductions,
    shaping,
    sharding,
    vision,
    writing,
)
from generators.program.ops.spec import OpSpec

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        spec.kind: spec
        for module in (
            shaping,
            pointwise,
            constants,
            reductions,
            recurrence,
            network,
            vision,
            attention,
            writing,
            sharding,
        )
        for spec in module.OPS
    }
)
FUNCTIONS: Mapping[str, str] = MappingProxyType({**recurrence.SCAN_FUNCTIONS, **sharding.SHARD_FUNCTIONS})
"""The functions that texts of operations call, by name, with their text."""
VIEWS = frozenset(kind for kind, spec in OPS.items() if spec.memory.keeps_numbers) - {"as_strided"}
"""The operations that change no number: views and copies."""
KERNELS = frozenset(spec.kind for module in (attention, vision, recurrence) for spec in module.OPS)
"""The operations whose kernels, which differ by dtype, choose the strides of the result."""
PROBABILITIES = ("p", "dropout_p", "dropout")
"""The attributes that are a probability of dropout."""


def complete_attributes(op: Op) -> dict[str, Any]:
    """The attributes of an operation, defaults filled in."""
    return {name: attribute.default for name, attribute in OPS[op.kind].attributes.items()} | dict(op.attrs)


def find_probability(op: Op) -> float:
    """The probability of the operation's dropout, which may be off; 0 without dropout."""
    attrs = complete_attributes(op) if OPS[op.kind].random else {}
    return next((attrs[name] for name in PROBABILITIES if name in attrs), 0.0)
