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
    vision,
    writing,
)
from generators.program.ops.spec import OpSpec

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        spec.kind: spec
        for module in (shaping, pointwise, constants, reductions, recurrence, network, vision, attention, writing)
        for spec in module.OPS
    }
)
VIEWS = frozenset(kind for kind, spec in OPS.items() if spec.memory.keeps_numbers) - {"as_strided", "view_dtype"}
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
