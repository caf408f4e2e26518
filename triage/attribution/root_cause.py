"""A root cause as data: where a fault is, how it works, and the experiments that show it."""

from dataclasses import dataclass

from corpus.causes import Mechanism, MechanismKind, Part, Stage, details
from fuzz.experiments import Tried
from fuzz.protocol.rewrites import WrongRewrite


def operands_mechanism(rewrite: WrongRewrite) -> Mechanism:
    """How a rewrite fails that is right for some operands."""
    return Mechanism(MechanismKind.OPERANDS, details(operands=sorted(rewrite.right)))


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a fault is and how it works."""

    who: str
    """At fault: `inductor`, `eager`, `dynamo`, `aot`, or the attention function."""
    stage: Stage
    part: str
    """A `Part`, or a name that torch or the function owns, such as `_sfdp_pattern_5`; "" where it is not known."""
    mechanism: Mechanism
    evidence: tuple[Tried, ...] = ()
    """The experiments that show it, with their outcomes."""
    rewrites: tuple[WrongRewrite, ...] = ()
    """Those proven wrong on the operands of the case; the first is at fault."""

    @property
    def measured(self) -> WrongRewrite | None:
        """The rewrite at fault, if other operands make it right."""
        return self.rewrites[0] if self.rewrites and self.mechanism.kind is MechanismKind.OPERANDS else None

    @property
    def is_attention_pattern(self) -> bool:
        """Whether a rewrite of attention is at fault."""
        return self.part == Part.ATTENTION_PATTERNS or self.part.startswith("_sfdp_pattern_")
