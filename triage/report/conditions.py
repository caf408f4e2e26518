"""Finds the conditions of a failure by changing one attribute or size of the case at a time."""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fuzz.bug_identity import attention_patterns
from fuzz.evaluator import compare_outcome
from fuzz.experiments import Outcome
from fuzz.protocol import SubjectResult
from generators.program import edits
from generators.program.case import Attr, Case, Op
from generators.program.edits import prune_if_valid
from generators.program.ops import OPS
from generators.program.ops.spec import Kind
from generators.program.type_check import attributes, make_op, types_of

MOST = 12
"""The most values that are tried of a property."""
_EDGES = (64, 128, 1, 65, 2, 63, 129, 3, 32, 33)
"""Sizes around the edges of tiles. The most telling sizes come first, because time may run out."""
_NUMBERS = (1.0, 2.0, -1.0, -1e4, float("-inf"))
_WORDS = {"active": "training", "sdpa": "scaled_dot_product_attention", "div": "division"}
_WORDS |= {"fast_path": "the fast-path switch", "mode": "self.training", "other": "the second operand"}
_WORDS |= {"always": "True", "never": "False"}
"""Words for attributes, operations and values whose names in cases differ from PyTorch's."""
_SHOWN, _NEAREST = 5, 2

Probe = Callable[[Case], SubjectResult]
"""Runs a case under the subject of the failure."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """The case with one property changed, and the outcome."""

    label: str
    """The property in words."""
    is_now: Any
    """Its value: a size, or an attribute of an operation."""
    becomes: Any
    case: Case
    dims: tuple[str, ...] = ()
    """Dimensions whose size changes; none for an attribute of an operation."""
    outcome: Outcome = Outcome.NOT_TRIED


def find_conditions(
    case: Case,
    result: SubjectResult,
    judge: Probe,
    seconds: float = 60.0,
    *,
    rewrite: bool = False,
    sizes_only: bool = False,
) -> list[str]:
    """The conditions of a failure, such as "dim of softmax: fails with 0; passes with -1".

    Perturbs for about `seconds`. `result`: the result of `judge` for the case itself. `rewrite`: an attention rewrite
    is at fault, so a result counts only if such a rewrite was applied.
    """
    began = time.monotonic()
    groups: dict[str, list[Perturbation]] = defaultdict(list)
    for made in perturb(case, sizes_only=sizes_only):
        if len(groups[made.label]) >= MOST:
            continue
        if time.monotonic() - began > seconds:
            break
        found = judge(made.case)
        if compare_outcome(found, result) is not Outcome.DOES_NOT_APPLY:
            applies = not rewrite or bool(attention_patterns(found.applied_rewrites))
            groups[made.label].append(replace(made, outcome=compare_outcome(found, result, applies=applies)))
    tried = [group for group in groups.values() if group]
    varied = {group[0].label for group in tried if _select(group, Outcome.PASSES)}
    fixed = varied - {group[0].label for group in tried if _select(group, Outcome.FAILS_ALIKE)}
    failing = [group[0] for group in tried if group[0].outcome is Outcome.FAILS_ALIKE]
    equal = [made for made in failing if len(made.dims) > 1 and {*made.dims} <= fixed]
    left = varied.difference(*(made.dims for made in equal))
    alone = [group for group in tried if len(group[0].dims) < 2 and group[0].label in left]
    told = [_describe_need(group) for group in alone if sizes_only or _is_telling(group)]
    return [f"{made.label}: passes where they differ" for made in equal] + told


def _select(group: list[Perturbation], outcome: Outcome) -> list[Any]:
    return [made.becomes for made in group if made.outcome is outcome]


def _is_telling(group: list[Perturbation]) -> bool:
    """True for attributes. For sizes: whether passing sizes lie on one side of failing sizes, and exceed 1."""
    if not group[0].dims:
        return True
    passing, failing = _select(group, Outcome.PASSES), [group[0].is_now, *_select(group, Outcome.FAILS_ALIKE)]
    return bool(max(passing) > 1 and (max(passing) < min(failing) or max(failing) < min(passing)))


def _describe_need(group: list[Perturbation]) -> str:
    now = group[0].is_now
    passing, failing = _select(group, Outcome.PASSES), _select(group, Outcome.FAILS_ALIKE)
    if group[0].dims:
        passing, failing = sorted(sorted(passing, key=lambda size: abs(size - now))[:_NEAREST]), sorted(failing)
    words = (", ".join(map(_show_value, values)) for values in ([now, *failing[:_SHOWN]], passing[:_SHOWN]))
    return f"{group[0].label}: fails with {next(words)}; passes with {next(words)}"


def resize(case: Case, names: Iterable[str], size: int) -> Case | None:
    """The case with these dimensions of another size; None if that changes the contracts of the case."""
    other = edits.resize(case, {**case.sizes, **dict.fromkeys(names, size)})
    return other if other is not None and len(other.contracts) == len(case.contracts) else None


def perturb(case: Case, *, sizes_only: bool = False) -> list[Perturbation]:
    """All perturbations. Properties take turns, because time may run out."""
    groups: dict[str, list[Perturbation]] = {}
    ways = (_sizes,) if sizes_only else (_attributes, _equal_sizes, _sizes)
    for made in itertools.chain.from_iterable(way(case) for way in ways):
        if made.case.canonical() != case.canonical():
            groups.setdefault(made.label, []).append(made)
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
                attrs = attributes(new)
                if op.kind == "transpose" and attrs["dim0"] % rank == attrs["dim1"] % rank:
                    continue  # of a dimension with itself
                made = prune_if_valid(replace(case, ops=tuple(new if o is op else o for o in case.ops)))
                if made is not None and len(made.ops) == len(case.ops):
                    label = f"{_WORDS.get(name, name)} of {_WORDS.get(which, which)}"
                    yield Perturbation(label, value, other, made)


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
        numbers = _NUMBERS if name == "value" else _NUMBERS[:3]
        yield from (*floats, *dict.fromkeys(number for number in (-value, *numbers) if number != value))
    elif kind is Kind.FLAG and isinstance(value, bool):
        yield not value
    elif kind is Kind.WORD:
        yield from (word for word in OPS[op.kind].attributes[name].words if word != value)
    elif kind is Kind.INT and isinstance(value, int):
        yield from (value - 1, value + 1)


def _sizes(case: Case) -> Iterator[Perturbation]:
    for name, size in case.dims:
        for other in dict.fromkeys((size + 1, size - 1, *_EDGES)):
            made = resize(case, [name], other) if 0 < other != size else None
            if made is not None:
                yield Perturbation(name, size, other, made, (name,))


def _equal_sizes(case: Case) -> Iterator[Perturbation]:
    """Grows dimensions of the same size together. They must be equal if this fails and growing each alone passes."""
    for value, count in Counter(case.sizes.values()).items():
        names = [name for name, size in case.dims if size == value]
        for together in itertools.chain(itertools.combinations(names, 2), [tuple(names)] if count > 2 else []):
            made = resize(case, together, value + 1)
            if made is not None and count > 1:
                yield Perturbation(" == ".join(together), value, value + 1, made, together)


def _show_value(value: Attr) -> str:
    if isinstance(value, tuple):
        return str([int(v) if isinstance(v, int) else str(v) for v in value])
    return _WORDS.get(str(value), str(value))
