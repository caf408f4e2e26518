"""Cases one step beside a case: each differs from it in one thing, as experiments and explanations need it.

What changes a case in a named way gives None where the result is no other case.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from generators.program import edits
from generators.program.case import Attr, Case, Op
from generators.program.dtypes import LOW_PRECISION
from generators.program.edits import prune_if_valid
from generators.program.ops import OPS
from generators.program.ops.spec import Kind
from generators.program.type_check import attributes, make_op, types_of

_FLOATS = ("float32", *LOW_PRECISION)
_EDGES = (64, 128, 1, 65, 2, 63, 129, 3, 32, 33)
"""Sizes around the edges of tiles, the telling ones first: time may run out."""
_COUNTS = (1, 2, 3, 4, 5, 6, 8, 7, 9, 12)
"""Sizes of batches and heads, which no kernel tiles."""
_NUMBERS = (1.0, 2.0, -1.0, -1e4, float("-inf"))
OVERLAPPING = ("unfold", "expand", "expand_as")
"""Operations whose results may overlap in memory."""
EQUAL = " == "
"""Between the dimensions of a property that are changed together."""


def with_positive_scale(case: Case) -> Case | None:
    """Every scale is positive."""

    def change(_op: Op, name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return abs(value) if name in ("scale", "other") and is_number else value  # type: ignore[arg-type]

    contracts = tuple(replace(contract, scale=abs(contract.scale)) for contract in case.contracts)
    return _other_than(case, replace(_with_attributes(case, change), contracts=contracts))


def with_contiguous_operands(case: Case) -> Case | None:
    """What contracts and fused calls read, and what overlaps in memory, is copied into contiguous memory first."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    # A copy between other operations would hide attention from the patterns that look for it.
    wanted |= {arg for op in case.ops if op.kind == "sdpa" for arg in op.args[:3]}
    wanted |= {op.name for op in case.ops if op.kind in OVERLAPPING}
    names: dict[str, str] = {}
    for op in (op for op in case.ops if op.name in wanted):
        names[op.name] = edits.make_name(case, f"{op.name[:24]}_copy", names.values())
    ops: list[Op] = []
    for op in case.ops:
        ops.append(replace(op, args=tuple(names.get(arg, arg) for arg in op.args)))
        if op.name in names:
            ops.append(make_op(names[op.name], "clone", (op.name,), {"memory_format": "contiguous"}))
    inputs = tuple(replace(item, layout="contiguous") for item in case.inputs)
    contracts = tuple(contract.rename(names) for contract in case.contracts)
    return _other_than(case, replace(case, ops=tuple(ops), inputs=inputs, contracts=contracts))


def in_dtype(case: Case, dtype: str) -> Case | None:
    """Every floating dtype is this one."""
    inputs = tuple(replace(item, dtype=dtype) if item.dtype in _FLOATS else item for item in case.inputs)
    changed = _with_attributes(case, lambda _op, _name, value: dtype if value in _FLOATS else value)
    return _other_than(case, replace(changed, inputs=inputs))


def resize(case: Case, names: Iterable[str], size: int) -> Case | None:
    """These dimensions have another size. None also where the attention would be another one."""
    other = edits.resize(case, {**case.sizes, **dict.fromkeys(names, size)})
    return other if other is not None and len(other.contracts) == len(case.contracts) else None


def _with_attributes(case: Case, change: Callable[[Op, str, Attr], Attr]) -> Case:
    ops = (make_op(op.name, op.kind, op.args, {k: change(op, k, v) for k, v in op.attrs}) for op in case.ops)
    return replace(case, ops=tuple(ops))


def _other_than(case: Case, other: Case) -> Case | None:
    made = prune_if_valid(other)
    return None if made is None or made.canonical() == case.canonical() else made


@dataclass(frozen=True, slots=True)
class Perturbation:
    """The case with one property changed: which, what it was, and what it is.

    What came of it: `fails` as the unchanged case does, or passes (False), or neither (None).
    """

    property: str
    is_now: str
    becomes: str
    case: Case
    fails: bool | None = None


def perturb(case: Case, *, sizes_only: bool = False) -> list[Perturbation]:
    """All of them, a round of one of each property after the other, since time may run out."""
    groups: dict[str, list[Perturbation]] = {}
    ways = (_sizes,) if sizes_only else (_attributes, _equal_sizes, _sizes)
    for made in itertools.chain.from_iterable(way(case) for way in ways):
        if made.case.canonical() != case.canonical():
            groups.setdefault(made.property, []).append(made)
    return [made for together in itertools.zip_longest(*groups.values()) for made in together if made is not None]


def _attributes(case: Case) -> Iterator[Perturbation]:
    types = types_of(case)
    kinds = [op.kind for op in case.ops]
    for op in case.ops:
        which = op.kind if kinds.count(op.kind) == 1 else f"{op.kind} `{op.name}`"
        rank = types[op.args[0]].rank if op.args else 0
        for name, value in attributes(op).items():
            if name == "form":
                continue
            for other in _other_values(op, name, value, rank):
                new = make_op(op.name, op.kind, op.args, {**dict(op.attrs), name: other})
                if op.kind == "transpose" and len({axis % rank for axis in _axes_of(new)}) == 1:
                    continue  # of a dimension with itself
                made = prune_if_valid(replace(case, ops=tuple(new if o is op else o for o in case.ops)))
                if made is not None and len(made.ops) == len(case.ops):
                    yield Perturbation(f"{name} of {which}", _show_value(value), _show_value(other), made)


def _axes_of(transpose: Op) -> tuple[int, int]:
    attrs = attributes(transpose)
    return attrs["dim0"], attrs["dim1"]


def _other_values(op: Op, name: str, value: Attr, rank: int) -> Iterator[Attr]:
    kind = OPS[op.kind].attributes[name].kind
    if kind is Kind.AXIS and isinstance(value, int):
        yield from (axis for axis in range(-1, -rank - 1, -1) if axis % max(1, rank) != value % max(1, rank))
    elif kind is Kind.AXES and isinstance(value, tuple) and len(value) <= 4:
        yield from sorted(
            itertools.permutations(range(len(value))),
            key=lambda axes: sum(a != b for a, b in zip(axes, value, strict=True)),
        )
    elif kind is Kind.NUMBER and isinstance(value, (int, float)) and not isinstance(value, bool):
        floats = (float(value),) if isinstance(value, int) else ()
        yield from (*floats, *dict.fromkeys(number for number in (-value, *_NUMBERS) if number != value))
    elif kind is Kind.FLAG and isinstance(value, bool):
        yield not value
    elif kind is Kind.WORD:
        yield from (word for word in OPS[op.kind].attributes[name].words if word != value)
    elif kind is Kind.INT and isinstance(value, int):
        yield from (value - 1, value + 1)


def _sizes(case: Case) -> Iterator[Perturbation]:
    counts = _counts_of(case)
    for name, size in sorted(case.dims, key=lambda dim: dim[0] in counts):
        for other in dict.fromkeys((size + 1, size - 1, *(_COUNTS if name in counts else _EDGES))):
            made = resize(case, [name], other) if 0 < other != size else None
            if made is not None:
                yield Perturbation(name, str(size), str(other), made)


def _equal_sizes(case: Case) -> Iterator[Perturbation]:
    """Dimensions of one size, larger by one together: where each alone passes, they must be equal."""
    for value, count in Counter(case.sizes.values()).items():
        names = [name for name, size in case.dims if size == value]
        for together in itertools.chain(itertools.combinations(names, 2), [tuple(names)] if count > 2 else []):
            made = resize(case, together, value + 1)
            if made is not None and count > 1:
                yield Perturbation(EQUAL.join(together), str(value), str(value + 1), made)


def _counts_of(case: Case) -> frozenset[str]:
    """The dimensions that count batches or heads and nothing else."""
    types = types_of(case)
    counted: set[str] = set()
    measured: set[str] = set()
    for contract in case.contracts:
        head = {"bhsd": 1, "bshd": 2}.get(contract.layout)
        for value in (contract.q, contract.k, contract.v):
            for axis, size in enumerate(types[value].shape):
                (counted if axis in (0, head) else measured).update(size.names())
    return frozenset(counted - measured)


def _show_value(value: Attr) -> str:
    return str([int(v) if isinstance(v, int) else str(v) for v in value]) if isinstance(value, tuple) else str(value)
