"""Wrong rewrites of the compiler and wrong calls of attention functions, with the changes that make them right."""

import re
from dataclasses import dataclass, field

from fuzz.experiments import EXPERIMENTS, Outcome, Tried
from fuzz.protocol.failures import Failure

QKV = ("query", "key", "value")
"""Operands of every attention. If only changes of these make rewrites right, different patterns are different bugs."""
CALL = "call"
"""Takes the place of the pattern name for a call of an attention function."""
DROPPED, EXPANDED, CONTIGUOUS = "dropped", "expanded", "contiguous"
"""Experiments on a call."""
SDPA = "aten.scaled_dot_product_attention"
EMPTY_ROWS = "without a key"
"""The rewrite is wrong only in rows that keep no key."""


@dataclass(frozen=True, order=True)
class OtherConstant:
    """A constant of the program that a rewrite replaces by the constant of its pattern."""

    operation: str
    program: str = ""  # the program's value
    pattern: str = ""  # the pattern's value; both are "" in files of older versions


@dataclass(frozen=True)
class WrongRewrite:
    """A rewrite that is wrong on the operands of a case, or a wrong call of an attention function. A wrong rewrite
    differs from the replaced operations in float64, or calls an operation that eager computes wrongly or refuses, which
    is then at fault.

    `right` and `wrong` hold the ids of experiments by operand. Operands of a call are its options, `layout`,
    `sequences`, `dtype`, `group`, sizes, and its state: `inference_mode`, `expanded_dout`, `constant_inputs`.
    """

    pattern: str
    """Its name in torch, or `CALL`."""
    right: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By operand, the experiments that pass. For a rewrite, only operands of which a uniform value makes it right."""
    wrong: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By operand, the experiments that fail. For a rewrite, only operands in `right`."""
    constants: tuple[OtherConstant, ...] = ()
    strides: bool = False
    """The numbers are right, and the strides differ."""
    rows: str = ""
    """`EMPTY_ROWS`, or "" if it is wrong in other rows too."""
    faulty: Failure | None = None
    """Set if eager gets the replacement wrong too: the failure of its first wrong operation, or of `SDPA` if the fused
    call alone is wrong or raises, forward or backward. Other fields are then empty."""

    @property
    def operation(self) -> str:
        """The operation that eager computes wrongly or refuses, or ""."""
        return getattr(self.faulty, "operation", SDPA) if self.faulty else ""

    @property
    def outcomes(self) -> list[Tried]:
        """The experiments, first the experiments that pass. Their arguments are operands."""
        both = ((self.right, Outcome.PASSES), (self.wrong, Outcome.FAILS_ALIKE))
        return [
            Tried(change, operand, outcome)
            for tried, outcome in both
            for operand, changes in tried.items()
            for change in changes
        ]

    @property
    def evidence_label(self) -> str:
        """The first that exists: the wrong operation of eager, operands in `right`, operations with other constants,
        "strides", the pattern."""
        named = {self.operation} if self.faulty else self.right.keys() or {one.operation for one in self.constants}
        return "+".join(sorted(named)) or ("strides" if self.strides else self.pattern)

    @property
    def dropped(self) -> frozenset[str]:
        """The options without which a call is right."""
        return frozenset(name for name, changes in self.right.items() if DROPPED in changes)

    def is_same_bug(self, other: "WrongRewrite") -> bool:
        """Whether both are the same bug. The first row that applies decides:

        | applies if                    | same bug if all of these hold                                             |
        |-------------------------------|---------------------------------------------------------------------------|
        | this is a call                | `_is_same_call`                                                           |
        | an operation of either is     | the keys of both `faulty` are equal                                       |
        | wrong in eager                |                                                                           |
        | either ignores constants      | both ignore constants (of any operations), or neither does;               |
        | or has other strides          | both have other strides, or neither does                                  |
        | both are wrong only in        | (always)                                                                  |
        | rows without a key            |                                                                           |
        | no row above applies          | `right` has the same operands;                                            |
        |                               | no change makes one right and the other wrong;                            |
        |                               | each operand was tried with mixed values in both, or in neither;          |
        |                               | both have one pattern, or `right` has operands other than `QKV`           |
        """
        if self.pattern == CALL:
            return self._is_same_call(other)
        if self.faulty or other.faulty:
            return (self.faulty and self.faulty.key()) == (other.faulty and other.faulty.key())
        kinds = {(bool(one.constants), one.strides) for one in (self, other)}
        if kinds != {(False, False)}:
            return len(kinds) == 1
        if self.rows and self.rows == other.rows:
            return True
        if self.right.keys() != other.right.keys() or self._contradicts(other):
            return False
        mine, others = (find_attention_pattern(one.pattern) or one.pattern for one in (self, other))
        return bool(self.right.keys() - {*QKV}) or mine == others

    def _is_same_call(self, other: "WrongRewrite") -> bool:
        """Whether all of these hold. If no change makes `other` right: whether none makes this call right.

        - Both are right without the same option, or neither is right without an option. A size is not enough, since
          short calls of any bug may be right.
        - Some change makes both right.
        - No change that makes `other` right leaves this call wrong.
        - No option, broadcast operand or layout that makes this call right leaves `other` wrong.
        """
        right, options, mine = _pairs(other.right), other.dropped, _pairs(self.right)
        if not right:
            return not self.right
        shares = bool(options & self.dropped) if options else not self.dropped
        needed = {pair for pair in mine & _pairs(other.wrong) if pair[1] in (DROPPED, EXPANDED, CONTIGUOUS)}
        return shares and bool(right & mine) and not (right & _pairs(self.wrong) or needed)

    def count_shared(self, other: "WrongRewrite") -> int:
        """The number of changes that were tried on both."""
        mine, theirs = (_pairs(one.right) | _pairs(one.wrong) for one in (self, other))
        return len(mine & theirs)

    def _contradicts(self, other: "WrongRewrite") -> bool:
        """Whether the experiments disagree: a change mends one and not the other, or only one was tried with mixed
        values of an operand. A mask of one element can't be mixed."""
        for operand, right in self.right.items():
            wrong, others_wrong = self.wrong.get(operand, ()), other.wrong.get(operand, ())
            if {*right} & {*others_wrong} or {*wrong} & {*other.right[operand]}:
                return True
            if _list_uniform((*right, *wrong)) != _list_uniform((*other.right[operand], *others_wrong)):
                return True
        return False


def _pairs(changes: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(name, change) for name, tried in changes.items() for change in tried}


def _list_uniform(changes: tuple[str, ...]) -> set[bool]:
    """Whether the changes set uniform values (True), mixed values (False), or both."""
    return {EXPERIMENTS[change].is_uniform for change in changes if change in EXPERIMENTS}


def find_attention_pattern(rewrite: str) -> str:
    """The attention pattern of a rewrite without its suffixes for modes and dtypes: "sfdp_pattern_5" for
    "_sfdp_pattern_5_half_inference". "" for any other rewrite."""
    found = re.match(r"_?(sfdp_pattern_\d+)", rewrite)
    return found[1] if found else ""


def are_all_known(rewrites: tuple[WrongRewrite, ...], known: tuple[WrongRewrite, ...]) -> bool:
    """Whether each of `rewrites` is the same bug as one of `known`."""
    return all(any(one.is_same_bug(other) for other in known) for one in rewrites)
