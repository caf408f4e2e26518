"""A root cause as data: where a fault is, how it works, and the experiments that show it. render.py has the words."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from fuzz.protocol import Control, Verdict
from fuzz.protocol.codec import Tagged
from fuzz.protocol.failures import Word
from fuzz.protocol.rewrites import WrongRewrite

PATTERNS = "patterns of attention"
"""The part that stands for all attention patterns of Inductor."""


class Stage(StrEnum):
    """Where a fault is. `OPERATION`: in one of ATen; `KERNEL`: in an attention function that is not part of torch."""

    DYNAMO = "dynamo/aot"
    JOINT_PASSES = "joint_graph_passes"
    GRAPH_PASSES = "graph_passes"
    LOWERING = "lowering"
    CODEGEN = "codegen"
    OPERATION = "operation"
    KERNEL = "kernel"


class MechanismKind(StrEnum):
    """How a fault works. The value is what ledgers hold, with the detail for "{}"; so it must not change."""

    # What a rewrite of attention overlooks.
    OPERANDS = "wrong for {}"
    EMPTY_ROWS = "a row without a key"
    CONSTANTS_IGNORED = "constants of the program ignored"
    OTHER_RESULT = "the replacement computes something else"
    # What an operation gets wrong.
    NEGATIVE_SCALE = "a negative scale"
    BROADCAST = "a broadcast {}"
    OVERLAPPING_ROWS = "operands whose rows overlap in memory"
    NOT_CONTIGUOUS = "operands that are not contiguous"
    WRONG = "wrong"
    WRONG_IN = "wrong in {}"
    NOT_FINITE = "not finite"
    NOT_FINITE_IN = "not finite in {}"
    # How an attention function fails.
    WRONG_VALUES = "wrong values"
    DROPOUT = "dropout of another distribution"
    WRITES = "writes out of bounds"
    RESULTS_DIFFER = "different results for equal inputs"
    # What it takes of a program that keeps state.
    LATER_CALL = "a later call with {}"
    WRITTEN = "a write into {}"
    # How anything fails.
    TWO_DTYPES = "an operation is given tensors of two dtypes"
    COMPILING_RAISES = "compiling raises {}"
    RUNNING_RAISES = "running raises {}"
    STRIDES = "strides in another order"
    MEMORY = "memory shared with another value"
    FORM = "another form of result"
    OTHER_VALUES = "other values"
    WRONG_RESULT = "wrong result"
    WRONG_GRADIENT = "wrong gradient"
    NONFINITE = "nonfinite"
    NONDETERMINISTIC = "nondeterministic"
    OUT_OF_BOUNDS = "out of bounds"
    EAGER_SUSPECT = "eager suspect"
    STATE_CHANGED = "state changed"
    METADATA = "metadata"
    COMPILE_ERROR = "compile error"
    RUNTIME_ERROR = "runtime error"
    DEVICE_ERROR = "device error"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker died"
    OUT_OF_MEMORY = "out of memory"

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        """The kind that says no more than the verdict."""
        return cls(verdict.value.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a fault works: a kind, and its detail, such as the exception without what changes from case to case."""

    name: MechanismKind
    detail: str = ""

    def __str__(self) -> str:
        if self.detail and "{}" not in self.name.value:
            return f"{self.name.value}: {self.detail}"
        return self.name.value.format(self.detail)


def operands_mechanism(rewrite: WrongRewrite) -> Mechanism:
    """How a rewrite fails that is right for some operands."""
    return Mechanism(MechanismKind.OPERANDS, f"some values of {' and '.join(sorted(rewrite.right))}")


PACKAGE = "AOTInductor's package"
"""The part at fault where a package fails and torch.compile does not."""


class CaseChange(Word):
    """What a case beside the finding's has instead."""

    POSITIVE_SCALE = "positive_scale", "a positive scale"
    CONTIGUOUS = "contiguous", "contiguous copies of the operands"
    EXPANDED = "expanded", "a {} that is not broadcast"
    ONE_DTYPE = "one_dtype", "inputs of one dtype"
    FLOAT32 = "float32", "float32"
    KEPT = "kept", "what backward reads kept in memory"
    CALLS_APART = "calls_apart", "each call made of a module of its own"
    WITHOUT_FEATURE = "without_feature", "no {}"


class _Finding(Tagged):
    """Base of what triage itself finds out."""


@dataclass(frozen=True, slots=True)
class Experiment(_Finding):
    """What came of one change: another subject, a control, another case. `passes`: None without a verdict.

    `subject`: "" for the one of the finding; `detail`: of the change of the case.
    """

    passes: bool | None
    subject: str = ""
    control: Control | None = None
    change: CaseChange | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Measured(_Finding):
    """A rewrite is proven wrong on the operands of the case."""

    rewrite: WrongRewrite


@dataclass(frozen=True, slots=True)
class FusedCall(_Finding):
    """The faulty operation is the fused call of this pattern's replacement, which is right."""

    pattern: str


@dataclass(frozen=True, slots=True)
class FirstStep(_Finding):
    """Of the passes, decompositions or lowerings (`step`) that compiling takes, the first with which the case fails, by
    name and number. With those before it alone the case passes."""

    step: str
    name: str
    number: int


Evidence = Experiment | Measured | FusedCall | FirstStep


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a fault is and how it works.

    `who` is at fault: "inductor", "eager", "dynamo", "aot", or the attention function; `stage`: a `Stage`, as text;
    `part`: "_sfdp_pattern_5", "relu", "aten.bmm"; "" where it is not known.
    """

    who: str
    stage: str
    part: str
    mechanism: Mechanism
    evidence: tuple[Evidence, ...] = ()

    @property
    def measured(self) -> WrongRewrite | None:
        """What is proven of the rewrite where operands make it right."""
        found = (item.rewrite for item in self.evidence if isinstance(item, Measured))
        return next(found, None) if self.mechanism.name is MechanismKind.OPERANDS else None

    @property
    def is_attention_pattern(self) -> bool:
        """Whether a rewrite of attention is at fault."""
        return self.part == PATTERNS or self.part.startswith("_sfdp_pattern_")
