"""Which properties of a finding matter: each is changed by itself, and the nearest case that passes is the control."""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

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
"""Values of one property that are tried."""

_EDGES = (64, 128, 1, 65, 2, 63, 129, 3, 32, 33)
"""Sizes around the edges of tiles, the telling ones first: time may run out."""
_NUMBERS = (1.0, 2.0, -1.0, -1e4, float("-inf"))
_WORDS = {"active": "training", "fast_path": "the fast path", "sdpa": "scaled_dot_product_attention", "div": "division"}
_WORDS |= {"mode": "self.training", "always": "True", "never": "False", "other": "the second operand"}
"""Names of attributes, operations and values that programs spell otherwise."""
_EQUAL = " == "
"""Between the dimensions of a property that are changed together."""

_SHOWN, _NEAREST = 5, 2

Judge = Callable[[Case], SubjectResult]


@dataclass(frozen=True, slots=True)
class Perturbation:
    """The case with one property changed, and the outcome."""

    name: str
    """Of the property."""
    is_now: str
    becomes: str
    case: Case
    outcome: Outcome = Outcome.NOT_TRIED

    @property
    def passes(self) -> bool:
        """Whether the change makes the case pass."""
        return self.outcome is Outcome.PASSES

    @property
    def fails(self) -> bool:
        """Whether the case fails as before."""
        return self.outcome is Outcome.FAILS_ALIKE


def explain(
    case: Case,
    result: SubjectResult,
    judge: Judge,
    seconds: float = 60.0,
    *,
    rewrite: bool = False,
    sizes_only: bool = False,
) -> list[str]:
    """What it takes to fail: "dim of softmax: fails with 0; passes with -1".

    The case is perturbed for about so many seconds. `result` is what `judge` gives for the case itself; `rewrite`: a
    rewrite of attention is at fault, and a case that it leaves alone says nothing; `sizes_only`: nothing but sizes is
    varied."""
    began = time.monotonic()
    counts: dict[str, int] = defaultdict(int)
    tried: list[Perturbation] = []
    for one in perturb(case, sizes_only=sizes_only):
        if counts[one.name] >= MOST:
            continue
        if time.monotonic() - began > seconds:
            break
        found = judge(one.case)
        if compare_outcome(found, result) is not Outcome.DOES_NOT_APPLY:
            counts[one.name] += 1
            outcome = compare_outcome(
                found, result, applies=not rewrite or bool(attention_patterns(found.applied_rewrites))
            )
            tried.append(replace(one, outcome=outcome))
    groups = {name: [one for one in tried if one.name == name] for name in dict.fromkeys(o.name for o in tried)}
    varied = {name for name, group in groups.items() if any(one.passes for one in group)}
    fixed = {name for name in varied if not any(one.fails for one in groups[name])}
    equal = [name for name, (one, *_) in groups.items() if one.fails and {*name.split(_EQUAL)} <= fixed]
    of_equal = {name for names in equal for name in names.split(_EQUAL)}
    alone = [name for name in groups if name in varied - of_equal and _EQUAL not in name]
    told = [_describe_need(name, groups[name]) for name in alone if sizes_only or _is_telling(groups[name])]
    return [f"{name}: passes where they differ" for name in equal] + told


def _is_size(name: str) -> bool:
    return name[:1].isupper()


def _is_telling(group: list[Perturbation]) -> bool:
    """Whether sizes that fail and sizes that pass, other than 1, lie apart; all attributes tell."""
    if not _is_size(group[0].name):
        return True
    passing = [int(one.becomes) for one in group if one.passes]
    failing = [int(group[0].is_now), *(int(one.becomes) for one in group if one.fails)]
    return max(passing) > 1 and (max(passing) < min(failing) or max(failing) < min(passing))


def _describe_need(name: str, group: list[Perturbation]) -> str:
    now = group[0].is_now
    passing = [one.becomes for one in group if one.passes]
    failing = [one.becomes for one in group if one.fails]
    if _is_size(name):
        near = sorted(map(int, passing), key=lambda size: abs(size - int(now)))[:_NEAREST]
        passing, failing = list(map(str, sorted(near))), list(map(str, sorted(map(int, failing))))
    return f"{name}: fails with {', '.join([now, *failing[:_SHOWN]])}; passes with {', '.join(passing[:_SHOWN])}"


def resize(case: Case, names: Iterable[str], size: int) -> Case | None:
    """These dimensions have another size. None also where the attention would be another one."""
    other = edits.resize(case, {**case.sizes, **dict.fromkeys(names, size)})
    return other if other is not None and len(other.contracts) == len(case.contracts) else None


def perturb(case: Case, *, sizes_only: bool = False) -> list[Perturbation]:
    """All of them, a round of one of each property after the other, since time may run out."""
    groups: dict[str, list[Perturbation]] = {}
    ways = (_sizes,) if sizes_only else (_attributes, _equal_sizes, _sizes)
    for made in itertools.chain.from_iterable(way(case) for way in ways):
        if made.case.canonical() != case.canonical():
            groups.setdefault(made.name, []).append(made)
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
                    told = f"{_WORDS.get(name, name)} of {_WORDS.get(which, which)}"
                    yield Perturbation(told, _show_value(value), _show_value(other), made)


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
                yield Perturbation(name, str(size), str(other), made)


def _equal_sizes(case: Case) -> Iterator[Perturbation]:
    """Dimensions of one size, larger by one together: where each alone passes, they must be equal."""
    for value, count in Counter(case.sizes.values()).items():
        names = [name for name, size in case.dims if size == value]
        for together in itertools.chain(itertools.combinations(names, 2), [tuple(names)] if count > 2 else []):
            made = resize(case, together, value + 1)
            if made is not None and count > 1:
                yield Perturbation(_EQUAL.join(together), str(value), str(value + 1), made)


def _show_value(value: Attr) -> str:
    if isinstance(value, tuple):
        return str([int(v) if isinstance(v, int) else str(v) for v in value])
    return _WORDS.get(str(value), str(value))
