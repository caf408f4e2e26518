"""A root cause as data: where a fault is, how it works, and the experiments that show it. render.py has the words."""

from dataclasses import dataclass

from corpus.causes import Mechanism, MechanismKind, Part, Stage, details
from fuzz.experiments import Trial
from fuzz.protocol.failures import Word
from fuzz.protocol.rewrites import WrongRewrite
from generators.records import Tagged


def operands_mechanism(rewrite: WrongRewrite) -> Mechanism:
    """How a rewrite fails that is right for some operands."""
    return Mechanism(MechanismKind.OPERANDS, details(operands=sorted(rewrite.right)))


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
    control: Trial | None = None
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
    """Where a fault is and how it works."""

    who: str
    """At fault: `inductor`, `eager`, `dynamo`, `aot`, or the attention function."""
    stage: Stage
    part: str
    """A `Part`, or a name that torch or the function owns, such as `_sfdp_pattern_5`; "" where it is not known."""
    mechanism: Mechanism
    evidence: tuple[Evidence, ...] = ()

    @property
    def measured(self) -> WrongRewrite | None:
        """What is proven of the rewrite where operands make it right."""
        found = (item.rewrite for item in self.evidence if isinstance(item, Measured))
        return next(found, None) if self.mechanism.kind is MechanismKind.OPERANDS else None

    @property
    def is_attention_pattern(self) -> bool:
        """Whether a rewrite of attention is at fault."""
        return self.part == Part.ATTENTION_PATTERNS or self.part.startswith("_sfdp_pattern_")
