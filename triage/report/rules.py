"""Rules that the values of a property may follow, and the conditions that name them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from generators.program.case import Values
from generators.program.kept_places import split_kind
from generators.program.values import LAYOUTS

WORDS = {"active": "training", "sdpa": "scaled_dot_product_attention", "div": "division"}
WORDS |= {"fast_path": "the fast-path switch", "mode": "self.training", "other": "the second operand"}
WORDS |= {"always": "True", "never": "False", "transposed": "the last two dimensions swapped in memory"}
WORDS |= {"heads_inner": "dimensions -2 and -3 swapped in memory", "padded": "a gap after each row"}
WORDS |= {"every_second": "every second element of a row", "offset": "an offset in its storage"}
WORDS |= {"zero_one": "zeros and ones", "small_counts": "0 to 2", "signed": "-2 to 2", "normal": "random numbers"}
WORDS |= {"random": "random True and False", "causal": "True up to the diagonal", "ones": "True everywhere"}
WORDS |= {"zeros": "False everywhere", "empty_row": "a row of False", "causal_mask": "-1e4 above the diagonal"}
WORDS |= {"padding": "False at the end of rows", "padding_mask": "-1e4 at the end of rows"}
WORDS |= {"empty_row_mask": "a row of -1e4"}
"""Words for attributes, operations and values whose names in cases differ from PyTorch's."""
_SHOWN = 4
"""The most examples that are given for each side."""
_DIVISORS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A size between two bounds, which it does not reach, that is a multiple of the divisor or is none.

    With `other`, a dimension, the bounds are distances from its size.
    """

    above: int | None = None
    below: int | None = None
    divisor: int = 1
    divides: bool = True
    other: str = ""

    def holds(self, size: int) -> bool:
        is_within = (self.above is None or size > self.above) and (self.below is None or size < self.below)
        return is_within and (size % self.divisor == 0) is self.divides

    def spell(self, name: str) -> str:
        """In words: "S > 32 and S % 16 != 0"."""
        words = []
        if self.above is not None and self.below == self.above + 2:
            words.append(f"{name} = {self._spell_bound(self.above + 1)}")
        else:
            words += [f"{name} > {self._spell_bound(self.above)}"] if self.above is not None else []
            words += [f"{name} < {self._spell_bound(self.below)}"] if self.below is not None else []
        if self.divisor > 1:
            words.append(f"{name} % {self.divisor} {'=' if self.divides else '!='} 0")
        return " and ".join(words)

    def _spell_bound(self, bound: int) -> str:
        return (
            f"{self.other} {'-' if bound < 0 else '+'} {abs(bound)}"
            if self.other and bound
            else self.other or str(bound)
        )


@dataclass(frozen=True, slots=True)
class TraitRule:
    """A trait of `_TRAITS`."""

    trait: str

    def holds(self, value: Any) -> bool | None:
        """None: not known."""
        return _TRAITS[self.trait](value)

    def spell(self, name: str) -> str:
        return f"{name} {self.trait}"


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """One of some values, or none of them."""

    values: tuple[Any, ...]
    excluded: bool = False

    def holds(self, value: Any) -> bool:
        return (value in self.values) is not self.excluded

    def spell(self, name: str) -> str:
        equals = "!=" if self.excluded else "="
        return f"{name} {equals} {' or '.join(map(show, self.values))}"


class EditRule:
    """The failure needs what an edit takes away. The values say whether a case is edited."""

    def holds(self, value: Any) -> bool:
        return not value

    def spell(self, name: str) -> str:
        return f"passes with {name}"


ConditionRule = SizeRule | TraitRule | ChoiceRule | EditRule


@dataclass(frozen=True, slots=True)
class Condition:
    """A need of the failure, with the values that were tried."""

    subject: str
    rule: ConditionRule
    fails: tuple[Any, ...]  # its own value first
    passes: tuple[Any, ...]
    is_exact: bool = True  # whether no other rule as simple explains these values

    def restate(self, rule: ConditionRule, part: SizeRule) -> "Condition":
        """With another rule, and of the sizes that pass those that `part` explains."""
        return replace(self, rule=rule, passes=tuple(size for size in self.passes if not part.holds(size)))

    def __str__(self) -> str:
        """In words, with the sizes next to the boundary: "S > 32 (fails with 40, 33; passes with 32, 31)"."""
        if isinstance(self.rule, EditRule):
            return self.rule.spell(self.subject)
        fails, passes = self.fails, self.passes
        if isinstance(self.rule, SizeRule):
            fails, passes = (*fails[:1], *_sort_by_distance(fails[1:], passes)), _sort_by_distance(passes, fails)
        shown = (", ".join(map(show, values[:_SHOWN])) for values in (fails, passes))
        untold = "" if self.is_exact else "; too few were tried to be exact"
        return f"{self.rule.spell(self.subject)} (fails with {next(shown)}; passes with {next(shown)}{untold})"


def _sort_by_distance(sizes: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
    """The sizes, those next to some of the others first."""
    return tuple(sorted(sizes, key=lambda size: min(abs(size - other) for other in others)))


@lru_cache
def list_size_rules(last: int) -> list[list[list[SizeRule]]]:
    """Rules by complexity, and by family. In a family the rule that holds for the fewest sizes comes first."""
    above = [SizeRule(above=size) for size in reversed(range(1, last))]
    below = [SizeRule(below=size) for size in range(2, last + 1)]
    multiples = [SizeRule(divisor=divisor, divides=divides) for divisor in _DIVISORS for divides in (True, False)]
    few = range(1, min(last, 200))
    spans = [SizeRule(low, high) for low in reversed(few) for high in few[low + 2 :]]
    both = [
        [replace(multiple, above=bound.above, below=bound.below) for bound in bounds]
        for multiple in multiples
        for bounds in (above, below)
    ]
    single = [[SizeRule(above=size - 1, below=size + 1)] for size in range(1, last + 1)]
    return [single, [above, below, *([one] for one in multiples)], [*both, spans]]


HELD: dict[str, tuple[float, str]] = {
    "zero_one": (1.0, "zero nonzero"),
    "small_counts": (1.0, "zero nonzero other"),
    "signed": (1.0, "zero nonzero other negative"),
    "normal": (1.0, "nonzero other negative"),
    "random": (0.5, "zero nonzero empty?"),
    "ones": (1.0, "nonzero"),
    "zeros": (1.0, "zero empty"),
    "causal": (1.0, "zero nonzero"),
    "padding": (1.0, "zero nonzero"),
    "empty_row": (0.5, "zero nonzero empty"),
    "causal_mask": (-1e4, "zero nonzero other negative"),
    "padding_mask": (-1e4, "zero nonzero other negative"),
    "empty_row_mask": (-1e4, "zero nonzero other negative hidden"),
}
"""By distribution: a scale, and the values that it draws; with a question mark those that depend on the seed."""


def _draws(*what: str) -> Callable[[Values], bool | None]:
    def draws(values: Values) -> bool | None:
        if values.given is not None or (split_kind(values.kind) and values.kind not in HELD):
            return None
        drawn = HELD.get(values.kind, (0.0, ""))[1].split()
        return any(one in drawn for one in what) or (None if any(f"{one}?" in drawn for one in what) else False)

    return draws


_TRAITS: dict[str, Callable[[Any], bool | None]] = {
    "is an int": lambda number: isinstance(number, int),
    "> 0": lambda number: number > 0,
    "< 0": lambda number: number < 0,
    ">= 0": lambda number: number >= 0,
    "<= 0": lambda number: number <= 0,
    "is between 0 and 1": lambda number: 0 < number < 1,
    "has contiguous rows": lambda layout: layout not in ("transposed", "every_second"),
    "has a value other than 0 and 1": _draws("other"),
    "has a row without a key": _draws("empty", "hidden"),
    "has a negative value": _draws("negative"),
    "has a 0 or False": _draws("zero"),
    "has a value other than 0": _draws("nonzero"),
}
"""Traits of numbers, of layouts, and of the values of inputs; the simplest first."""


def list_traits(value: Any) -> list[str]:
    names, is_number = list(_TRAITS), isinstance(value, (int, float)) and not isinstance(value, bool)
    return names[:6] if is_number else names[7:] if isinstance(value, Values) else names[6:7] * (value in LAYOUTS)


def show(value: Any) -> str:
    if isinstance(value, Values):
        if value.given is not None:
            return "the given values"
        return WORDS.get(value.kind, value.kind.replace("_", " "))
    if isinstance(value, tuple):
        return str([int(v) if isinstance(v, int) else str(v) for v in value])
    return WORDS.get(str(value), str(value))
