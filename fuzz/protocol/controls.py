"""Control experiments: part of a request. What they observe is part of the result.

A control changes one thing about how a subject compiles or runs. The worker implements them in fuzz/check/controls.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Control:
    """A control by its name in fuzz/check/controls.py, with its argument."""

    name: str
    argument: str = ""


@dataclass(frozen=True)
class StepsTaken:
    """How many steps of compiling the control `steps` allowed that there were, and the name of the last of them."""

    count: int
    last: str
