"""Control experiments: part of a request. What they observe is part of the result.

A control changes one thing about how a subject compiles or runs, or watches it. The worker implements them in
fuzz/check/controls.
"""

from dataclasses import dataclass, field

from fuzz.protocol.codec import Tagged


@dataclass(frozen=True)
class Control:
    """A control by its name in fuzz/check/controls, with its argument, such as the rewrite it switches off."""

    name: str
    argument: str = ""


class Observed(Tagged):
    """Base of what controls observe."""


@dataclass(frozen=True)
class PatternMatched(Observed):
    """A pattern of attention matched part of the graph. `ranks`: of its arguments that are tensors, by name."""

    pattern: str
    ranks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DecompositionDiffers(Observed):
    """A decomposition gives, in float64 and on the operands of the case, something else than its operation.

    `error`: the largest, in parts of the largest element.
    """

    operation: str
    error: float


@dataclass(frozen=True)
class PassDiffers(Observed):
    """The first pass after which the graph gives something else, evaluated in float64 on the operands of the case.

    `stage`: the group of passes; `name`: of the pass; `rewrite`: the one it had just applied, "" for none; `node`: the
    first node whose value changed, or "output 0"; `operation`: that of the node; `removed`, `added`: operations that
    computed it before, and after; `line`: of the program that it comes from; `error`: in parts of the largest element.
    """

    stage: str
    name: str
    rewrite: str
    node: str
    operation: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    error: float
    line: str = ""


@dataclass(frozen=True)
class KernelDiffers(Observed):
    """The first kernel that writes something else than its operations give for what it read.

    `operations`: those computed in it, from the nodes whose values are in no memory; `node`: the value it writes;
    `wrong` of `elements` are further than rounding explains; `error`: the largest, in parts of the largest element;
    `eager`: the same for these operations run one by one.
    """

    kernel: str
    operations: tuple[str, ...]
    node: str
    wrong: int
    elements: int
    error: float
    eager: float


@dataclass(frozen=True)
class NotMeasured(Observed):
    """A comparison could not be made; `why` in one line."""

    what: str
    why: str


Observation = PatternMatched | DecompositionDiffers | PassDiffers | KernelDiffers | NotMeasured
