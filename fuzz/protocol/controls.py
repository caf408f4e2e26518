"""Control experiments: part of a request. What they observe is part of the result.

A control changes one thing about how a subject compiles or runs, or watches it. The worker implements them in
fuzz/check/controls.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Control:
    """A control by its name in fuzz/check/controls, with its argument, such as the rewrite it switches off."""

    name: str
    argument: str = ""


@dataclass(frozen=True)
class Operand:
    """What a pattern's argument `name` matched: a tensor's sizes, strides and dtype, or the text of anything else."""

    name: str
    shape: tuple[str, ...] = ()
    stride: tuple[str, ...] = ()
    dtype: str = ""
    text: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether the operand is a tensor."""
        return bool(self.dtype)


@dataclass(frozen=True)
class PatternMatched:
    """A pattern of attention matched part of the graph."""

    kind: ClassVar[str] = "pattern_matched"
    pattern: str
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class ConstantDiffers:
    """A constant of the program is not the one of the pattern that took it."""

    kind: ClassVar[str] = "constant_differs"
    pattern: str
    operation: str
    program: str
    expected: str


@dataclass(frozen=True)
class ConstantsNotCompared:
    """The constants of a program and a pattern could not be compared."""

    kind: ClassVar[str] = "constants_not_compared"
    pattern: str
    why: str


Observation = PatternMatched | ConstantDiffers | ConstantsNotCompared
