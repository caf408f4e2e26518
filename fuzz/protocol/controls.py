"""Control experiments: part of a request. What they observe is part of the result.

A control changes one thing about how a subject compiles or runs, or watches it. The worker implements them in
fuzz/check/controls.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Control:
    """A control by its name in fuzz/check/controls, with its argument, such as the rewrite it switches off."""

    name: str
    argument: str = ""


@dataclass(frozen=True)
class PatternMatched:
    """A pattern of attention matched part of the graph. `ranks`: of its arguments that are tensors, by name."""

    pattern: str
    ranks: dict[str, int] = field(default_factory=dict)
