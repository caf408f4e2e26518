"""Control experiments: part of a request. What they observe is part of the result.

A control changes one thing about how a subject compiles or runs, or watches it. The worker implements them in
fuzz/check/controls.
"""

from dataclasses import dataclass

from fuzz.protocol.codec import Tagged


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


class Observation(Tagged):
    """Base of what controls observe."""


@dataclass(frozen=True)
class PatternMatched(Observation):
    """A pattern of attention matched part of the graph."""

    pattern: str
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class ConstantDiffers(Observation):
    """A constant of the program is not the one of the pattern that took it."""

    pattern: str
    operation: str
    program: str
    expected: str


@dataclass(frozen=True)
class ConstantsNotCompared(Observation):
    """The constants of a program and a pattern could not be compared."""

    pattern: str
    why: str
