"""A wrong rewrite of the compiler or a wrong call of an attention function, measured on the operands it took."""

import re
from dataclasses import dataclass, field

from fuzz.experiments import EXPERIMENTS, Outcome, Tried

ATTENDED = ("query", "key", "value")
"""Operands that every attention has: if only these make a rewrite right, the bug is in its pattern."""
CALL = "call"
"""The pattern of a call of an attention function."""
DROPPED, EXPANDED, CONTIGUOUS = "dropped", "expanded", "contiguous"
"""Experiments on a call."""
EMPTY_ROWS = "without a key"
"""The rows in which a rewrite is wrong: those that may attend to no key."""


@dataclass(frozen=True, order=True)
class OtherConstant:
    """A constant of an operation in a program, which the pattern of a rewrite takes for its own."""

    operation: str
    program: str = ""  # the program's value
    pattern: str = ""  # the pattern's value; both are "" in files of older versions


@dataclass(frozen=True)
class WrongRewrite:
    """A rewrite that computes something else than its pattern, in float64 on the operands of a case; or a wrong call.

    `right` and `wrong` hold the ids of experiments by operand. Operands of a call are its options, `layout`,
    `sequences`, `dtype`, `group` and sizes.
    """

    pattern: str
    """Its name in torch, or `CALL`."""
    right: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Operands that make it right, of a rewrite with one value throughout, and the experiments that pass."""
    wrong: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a rewrite, the experiments on the same operands that fail; of a call, all that fail."""
    constants: tuple[OtherConstant, ...] = ()
    strides: bool = False
    """It gives the right numbers in another layout."""
    rows: str = ""
    """`EMPTY_ROWS` if it is wrong in no other rows."""

    @property
    def outcomes(self) -> list[Tried]:
        """The experiments on its operands, those that pass first; the argument is the operand."""
        both = ((self.right, Outcome.PASSES), (self.wrong, Outcome.FAILS_ALIKE))
        return [
            Tried(change, operand, outcome)
            for tried, outcome in both
            for operand, changes in tried.items()
            for change in changes
        ]

    @property
    def cause(self) -> str:
        """The operands that make it wrong, the operations with other constants, or the pattern."""
        named = self.right.keys() or {constant.operation for constant in self.constants}
        return "+".join(sorted(named)) or ("strides" if self.strides else self.pattern)

    @property
    def dropped(self) -> frozenset[str]:
        """The options without which a call is right."""
        return frozenset(name for name, changes in self.right.items() if DROPPED in changes)

    def is_same_bug(self, other: "WrongRewrite") -> bool:
        """Whether both are the same bug. The first line that applies decides:

        calls           what makes `other` right makes this one right too, if both were tried; an option, if either
                        needs an option, since short calls of any bug may be right
        constants       both have other constants than the pattern, of whichever operations; or both other strides
        empty rows      both are wrong in no other rows
        operands        the same operands make both right, and no change makes one right and the other wrong
        ATTENDED alone  as operands, and both have one pattern
        """
        if self.pattern == CALL:
            return self._is_same_call(other)
        kinds = {(bool(one.constants), one.strides) for one in (self, other)}
        if kinds != {(False, False)}:
            return len(kinds) == 1
        if self.rows and self.rows == other.rows:
            return True
        if self.right.keys() != other.right.keys() or self._contradicts(other):
            return False
        return bool(self.right.keys() - {*ATTENDED}) or _number(self.pattern) == _number(other.pattern)

    def _is_same_call(self, other: "WrongRewrite") -> bool:
        right, options, mine = _pairs(other.right), other.dropped, _pairs(self.right)
        if not right:
            return not self.right
        shares = bool(options & self.dropped) if options else not self.dropped
        needed = {pair for pair in mine & _pairs(other.wrong) if pair[1] in (DROPPED, EXPANDED, CONTIGUOUS)}
        return shares and bool(right & mine) and not (right & _pairs(self.wrong) or needed)

    def count_shared(self, other: "WrongRewrite") -> int:
        """How many changes both were tried under."""
        mine, theirs = (_pairs(one.right) | _pairs(one.wrong) for one in (self, other))
        return len(mine & theirs)

    def _contradicts(self, other: "WrongRewrite") -> bool:
        """Whether a change makes only one rewrite right, or only one had operands with several elements to change."""
        for operand, right in self.right.items():
            wrong, others_wrong = self.wrong.get(operand, ()), other.wrong.get(operand, ())
            if {*right} & {*others_wrong} or {*wrong} & {*other.right[operand]}:
                return True
            if _extents((*right, *wrong)) != _extents((*other.right[operand], *others_wrong)):
                return True
        return False


def _pairs(changes: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(name, change) for name, tried in changes.items() for change in tried}


def _extents(changes: tuple[str, ...]) -> set[bool]:
    return {EXPERIMENTS[change].is_throughout for change in changes if change in EXPERIMENTS}


def _number(pattern: str) -> str:
    """A pattern without its forms for modes and dtypes: _sfdp_pattern_5_half_inference has 5."""
    return "".join(re.findall(r"\d+", pattern)[:1]) or pattern


def is_explained(rewrites: tuple[WrongRewrite, ...], known: tuple[WrongRewrite, ...]) -> bool:
    """Whether each of `rewrites` is the same bug as a known rewrite."""
    return all(any(one.is_same_bug(other) for other in known) for one in rewrites)
