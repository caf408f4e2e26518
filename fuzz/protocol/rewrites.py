"""What is wrong with a rewrite of the compiler or a call of an attention function, measured on the operands it took."""

import re
from dataclasses import dataclass, field

ATTENDED = ("query", "key", "value")
"""Operands that every attention has: that they make a rewrite right tells bugs of one pattern apart."""

CALL = "call"
"""The pattern of a call of an attention function."""

DROPPED, EXPANDED, CONTIGUOUS = "dropped", "expanded", "contiguous"
"""Changes of a call: an option is left out, a mask or bias gets all axes, all tensors are contiguous."""


EMPTY_ROWS = "without a key"
"""The rows in which a rewrite is wrong: those that may attend to no key."""


@dataclass(frozen=True)
class WrongRewrite:
    """A rewrite that, in float64 and on the operands of a case, gives something else than the pattern it replaces.

    `pattern`: its name. `right`: operands that make it right with one value throughout, each with all changes of it
    under which it is right; `wrong`: the changes of the same operands under which it stays wrong. A change is `all V`,
    every element is V, or `one V in W`, the first of each row is V and the others W. `constants`: where constants
    matter, the operations whose constants the pattern does not share, each as "amax [-2] for [-1]": the program's, and
    the pattern's; `strides` where it gives the right numbers in another layout. Older versions wrote the
    operations alone. `rows`: `EMPTY_ROWS` where on these operands it is wrong in no others.

    Of a wrong call `pattern` is `CALL`, and operands are its options (`DROPPED`, `EXPANDED`), `layout`
    (`CONTIGUOUS`), `sequences` (one alone) and sizes (cut to 16), `dtype`, `scale` and `group`.
    """

    pattern: str
    right: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wrong: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    rows: str = ""

    @property
    def cause(self) -> str:
        """What makes it wrong, in a word: operands, operations with other constants, or the pattern itself."""
        return "+".join(sorted(self.right) or sorted(self.operations)) or self.pattern

    @property
    def operations(self) -> frozenset[str]:
        """Those whose constants differ."""
        return frozenset(constant.partition(" ")[0] for constant in self.constants)

    @property
    def is_of_strides(self) -> bool:
        """Whether the numbers are right."""
        return self.operations == {"strides"}

    @property
    def dropped(self) -> frozenset[str]:
        """The options without which a call is right."""
        return frozenset(name for name, changes in self.right.items() if DROPPED in changes)

    def is_same_bug(self, other: "WrongRewrite") -> bool:
        """Whether both are wrong in rows without a key alone, or the same operands make both right, or in both
        constants differ, whichever these are. Where neither tells, or query, key and value alone, it has to be one
        pattern too. Two calls must share what makes them right, as far as both have it: an option if either needs one,
        since short calls of any bug may be right."""
        if self.pattern == CALL:
            right, options = _pairs(other.right), other.dropped
            if not right:
                return not self.right
            shares = bool(options & self.dropped) if options else not self.dropped
            mine = _pairs(self.right)
            needed = {pair for pair in mine & _pairs(other.wrong) if pair[1] in (DROPPED, EXPANDED, CONTIGUOUS)}
            return shares and bool(right & mine) and not (right & _pairs(self.wrong) or needed)
        if self.constants or other.constants:
            return bool(self.constants and other.constants) and self.is_of_strides == other.is_of_strides
        if self.rows and self.rows == other.rows:
            return True
        if self.right.keys() != other.right.keys() or self._contradicts(other):
            return False
        return bool(self.right.keys() - {*ATTENDED}) or _number(self.pattern) == _number(other.pattern)

    def count_shared(self, other: "WrongRewrite") -> int:
        """How many changes both were tried under."""
        mine, theirs = (_pairs(one.right) | _pairs(one.wrong) for one in (self, other))
        return len(mine & theirs)

    def _contradicts(self, other: "WrongRewrite") -> bool:
        """Whether a change makes one right and leaves the other wrong, or one could not be changed in some element, as
        a mask of one element can't."""
        for operand, right in self.right.items():
            wrong, others_wrong = self.wrong.get(operand, ()), other.wrong.get(operand, ())
            if {*right} & {*others_wrong} or {*wrong} & {*other.right[operand]}:
                return True
            if _kinds((*right, *wrong)) != _kinds((*other.right[operand], *others_wrong)):
                return True
        return False


def _pairs(changes: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    """What was changed, and how."""
    return {(name, change) for name, tried in changes.items() for change in tried}


def _kinds(changes: tuple[str, ...]) -> set[str]:
    """`all`, and `one` where that is another change."""
    return {change.split()[0] for change in changes}


def _number(pattern: str) -> str:
    """A pattern without its forms for modes and dtypes: _sfdp_pattern_5_half_inference has 5."""
    return "".join(re.findall(r"\d+", pattern)[:1]) or pattern


def is_explained(rewrites: tuple[WrongRewrite, ...], known: tuple[WrongRewrite, ...]) -> bool:
    """Whether each of `rewrites` is the same bug as one that is known."""
    return all(any(one.is_same_bug(other) for other in known) for one in rewrites)
