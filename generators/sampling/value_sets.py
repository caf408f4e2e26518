"""Other numbers for a program: compiling takes far longer than judging, so that one compile is judged on several."""

from dataclasses import replace

from generators.program.case import Case, Input, Values
from generators.program.dtypes import category
from generators.program.edits import resize
from generators.program.emit import find_fixed_sizes, is_random, source
from generators.program.values import DISTRIBUTIONS, INDICES
from generators.sampling.choices import Choices

SETS = 3
"""How many a case has: with four of them a case under the graph passes takes a fifth longer."""

_FLOATS = {
    "normal": (1.0, 8.0, 0.02),  # with 8 the weights are one-hot, with 0.02 nearly equal
    "outliers": (10.0,),
    "constant": (0.5, -1.0),
    "one_row": (30.0,),
    "integers": (1.0,),
}
_MASKS = {
    "empty_row_mask": (float("-inf"), -1e4),
    "causal_mask": (float("-inf"), -1e4),
    "zero_one": (1.0,),
    "small_counts": (1.0,),
    "signed": (1.0,),
    "constant": (-2.0, 0.0),
}
_INTEGERS = {"zero_one": (1.0,), "small_counts": (1.0,), "signed": (1.0,)}
_BOOLEANS = {"random": (0.5,), "empty_row": (0.5,), "causal": (1.0,), "ones": (1.0,), "zeros": (1.0,)}


def make_value_sets(case: Case) -> tuple[Case, ...]:
    """The case with other values for its inputs; with dynamic shapes, in other sizes too. Always the same for a case.

    Nothing else differs, so that what was compiled for the case takes them. None for a case that draws random numbers.
    """
    if is_random(case):
        return ()
    c = Choices(f"{case.id}:values")
    found = {case.id: case}
    for _ in range(SETS):
        other = replace(case, inputs=tuple(_with_other_values(item, c) for item in case.inputs))
        other = (_in_other_sizes(other, c) if case.dynamic else None) or other
        found.setdefault(other.id, other)
    return tuple(found.values())[1:]


def _with_other_values(item: Input, c: Choices) -> Input:
    if item.parameter or item.shares or item.values.kind in INDICES:
        return item
    kinds = (_BOOLEANS, _INTEGERS, _MASKS if item.values.kind.endswith("mask") else _FLOATS)[category(item.dtype)]
    fitting = [kind for kind in kinds if _fits(kind, item)]
    kind = c.pick(fitting)
    return replace(item, values=Values(kind, item.values.seed, c.pick(kinds[kind])))


def _fits(kind: str, item: Input) -> bool:
    distribution = DISTRIBUTIONS[kind]
    return item.dtype in distribution.dtypes and len(item.shape) >= distribution.min_rank


def _in_other_sizes(case: Case, c: Choices) -> Case | None:
    """The case with larger sizes, equal ones staying equal, where its module does not depend on them."""
    growth = {size: 1 + c.below(3) for size in sorted(set(case.sizes.values()))}
    fixed = find_fixed_sizes(case)
    # Compilers make a size of 0 or 1 a constant.
    grown = {name: size if name in fixed or size < 2 else size + growth[size] for name, size in case.dims}
    other = resize(case, grown)
    return other if other is not None and _module_text(other) == _module_text(case) else None


def _module_text(case: Case) -> str:
    return source(case).partition("class Module")[2].partition("\ndef inputs")[0]
