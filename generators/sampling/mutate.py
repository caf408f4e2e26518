"""A case changed a little at random: what a search tries beside a case that reached something new."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from generators.program.case import Case
from generators.program.edits import valid
from generators.program.sizes import product
from generators.program.type_check import make_op, types_of
from generators.sampling.choices import Choices
from generators.sampling.mutations import forms, programs, spellings, splicing, surroundings

Edit = Callable[[Case, Choices], Case | None]
"""Gives a changed case, which may not be well typed, or None where there is nothing to change."""

EDITS: Mapping[Edit, float] = {
    spellings.respell: 5.0,
    programs.change_attribute: 3.0,
    programs.insert: 2.0,
    programs.delete: 1.5,
    programs.replace_kind: 2.0,
    programs.rewire: 1.5,
    programs.return_more: 0.5,
    surroundings.equal_dims: 2.0,
    surroundings.resize: 1.5,
    surroundings.change_values: 2.0,
    surroundings.change_layout: 1.0,
    surroundings.change_dtype: 1.5,
    surroundings.change_mode: 1.0,
}
SPLICE = 2.0
"""The weight of splicing, beside those of the edits, where there is another case."""
WEIGHTS: Mapping[str, float] = {edit.__name__: weight for edit, weight in EDITS.items()} | {
    splicing.splice.__name__: SPLICE
}
"""The weights by name, splicing among them."""
_BY_NAME = {edit.__name__: edit for edit in EDITS}
_COUNT = {1: 5.0, 2: 3.0, 3: 1.5, 5: 0.5}
_ATTEMPTS = 40

MOST_OPS = 40
MOST_ELEMENTS = 1 << 18
"""Of one value: a search needs cases that are quick to judge. A case that has more to begin with may keep them."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated case, and the edits that made it, by name."""

    case: Case
    edits: tuple[str, ...]


def mutate(case: Case, c: Choices, others: Sequence[Case] = (), weights: Mapping[str, float] = WEIGHTS) -> Mutant:
    """A valid case some edits away from `case`, of which one may splice in one of `others`; almost always another case.

    A contract stays where the edits keep what it says, and is dropped where they may not.
    """
    limits = max(MOST_OPS, len(case.ops)), max(MOST_ELEMENTS, _elements(case))
    edits: list[str] = []
    for _ in range(c.weighted(_COUNT)):
        for _ in range(_ATTEMPTS):
            name = c.weighted(weights)
            changed = _edited(case, c, name, others)
            if changed is not None and len(changed.ops) <= limits[0] and _elements(changed) <= limits[1]:
                case = changed
                edits.append(name)
                break
    return Mutant(_reshaping(case), tuple(edits))


def siblings(case: Case, c: Choices) -> list[Case]:
    """The case in the other forms that rewrites tell apart (`generators.mutations.forms`), as far as it has them."""
    found = (valid(other) for other in forms.siblings(case, c))
    return [_reshaping(other) for other in found if other is not None and not _differentiates_flex(other)]


def _edited(case: Case, c: Choices, name: str, others: Sequence[Case]) -> Case | None:
    if name in _BY_NAME:
        changed = _BY_NAME[name](case, c)
    else:
        changed = splicing.splice(case, c, c.pick(others)) if others else None
    changed = None if changed is None else valid(changed)
    if changed is None or not changed.ops or changed.id == case.id:
        return None
    return None if _differentiates_flex(changed) else changed


def _differentiates_flex(case: Case) -> bool:
    """Whether flex_attention is asked for gradients, or given parameters: on the CPU it refuses both."""
    calls = [op for op in case.ops if op.kind == "flex_attention"]
    parameters = {item.name for item in case.inputs if item.parameter}
    return bool(calls) and (case.training or any(parameters & set(op.args[:3]) for op in calls))


def _reshaping(case: Case) -> Case:
    """The case with reshape for view, which refuses what it can't do without a copy: no type says how a value lies."""
    ops = (make_op(op.name, "reshape", op.args, dict(op.attrs)) if op.kind == "view" else op for op in case.ops)
    return replace(case, ops=tuple(ops))


def _elements(case: Case) -> int:
    return max((product(t.shape).value(case.sizes) for t in types_of(case).values()), default=0)
