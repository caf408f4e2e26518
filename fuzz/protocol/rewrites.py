"""What a rewrite of the compiler is, measured on the operands that it took: a proof without any tolerance."""

from dataclasses import dataclass
from functools import cached_property

ATTENDED = ("query", "key", "value")
"""Operands that every attention has. What they hold says little about a rewrite."""


@dataclass(frozen=True)
class OperandChange:
    """Pattern and replacement evaluated once more with one operand changed. `change`: `all V`, every element is V, or
    `one V in W`, one is V and the others are W; `agrees`: whether both then give the same."""

    operand: str
    change: str
    agrees: bool


@dataclass(frozen=True)
class WrongRewrite:
    """A rewrite that, in float64 and on the operands of a case, gives something else than the pattern that it replaces.

    `pattern`: its name; `changes`: for which operands it would be right; `constants`: operations whose constants the
    program and the pattern do not share, where no changed operand makes it right.
    """

    pattern: str
    changes: tuple[OperandChange, ...] = ()
    constants: tuple[str, ...] = ()

    @cached_property
    def domains(self) -> dict[str, dict[str, bool]]:
        """By operand, for each change whether the rewrite is right under it; of operands that, of one value throughout,
        make it right. A mask that leaves one key makes every score right, and tells nothing."""
        found: dict[str, dict[str, bool]] = {}
        for one in self.changes:
            if one.operand not in ATTENDED:
                found.setdefault(one.operand, {})[one.change] = one.agrees
        return {name: tried for name, tried in found.items() if any(tried[way] for way in tried if way.startswith("all"))}

    @property
    def cause(self) -> str:
        """What makes it wrong, in one word: operands, operations with other constants, or the pattern itself."""
        return "+".join(sorted(self.domains) or self.constants) or self.pattern

    def is_same_bug(self, other: "WrongRewrite") -> bool:
        """Whether the same operands make both right; where none does, whether the same constants differ, or else
        whether it is one pattern."""
        if self.domains or other.domains:
            return bool(self.domains) and self.domains.keys() == other.domains.keys() and self._has_domains_of(other)
        if self.constants or other.constants:
            return bool({*self.constants} & {*other.constants})
        return self.pattern == other.pattern

    def _has_domains_of(self, other: "WrongRewrite") -> bool:
        """Whether both are right and wrong under the same changes, of those that both were tried with."""
        for operand, changes in self.domains.items():
            tried = other.domains[operand]
            if any(tried.get(change, agrees) is not agrees for change, agrees in changes.items()):
                return False
        return True
