"""The closed table of operations. A case can name these and nothing else."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from generators.program.case import Attr, Op
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
from generators.program.ops.spec import Attribute, Kind, OpSpec
from generators.program.sizes import Size

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


def make_op(name: str, kind: str, args: Iterable[str], attrs: Mapping[str, Attr]) -> Op:
    """An operation with its attributes in canonical form: sorted, defaults left out, sizes as Size."""
    spec = OPS.get(kind)
    stored = []
    for key, value in sorted(attrs.items()):
        attribute = spec.attributes.get(key) if spec else None
        if attribute is not None:
            value = _canonical(attribute, value)  # noqa: PLW2901 - the same value in its stored form
            if not attribute.required and same_attr(value, _canonical(attribute, attribute.default)):
                continue
        stored.append((key, value))
    return Op(name, kind, tuple(args), tuple(stored))


def same_attr(a: Attr, b: Attr) -> bool:
    """Whether two attribute values are the same; 1, 1.0 and True are different."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


def _canonical(attribute: Attribute, value: Attr) -> Attr:
    if attribute.kind in (Kind.SIZE, Kind.BOUND) and isinstance(value, int | str) and not isinstance(value, bool):
        return Size.of(value)
    if attribute.kind is Kind.SIZES and isinstance(value, tuple):
        return tuple(Size.of(v) for v in value)
    return value
