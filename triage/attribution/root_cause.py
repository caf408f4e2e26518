"""A root cause as data: where a fault is, how it works, and the experiments that show it."""

from dataclasses import dataclass

from corpus.causes import CauseKey, Mechanism, MechanismKind, Part, Stage, details
from fuzz.bug_identity import PROCESS, SILENT
from fuzz.experiments import Tried
from fuzz.protocol import EAGER
from fuzz.protocol.rewrites import ATTENDED, WrongRewrite
from fuzz.subjects import compiler_of

_OF_ONE_PATTERN = {MechanismKind.OTHER_RESULT, MechanismKind.FORM, *map(MechanismKind, PROCESS | SILENT)}
"""Mechanisms that lie in the replacement of one pattern, or that say no more than how it fails."""


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
    """Rewrites proven wrong on the operands of the case; the first is at fault."""

    @property
    def measured(self) -> WrongRewrite | None:
        """The rewrite at fault, if other operands make it right."""
        return self.rewrites[0] if self.rewrites and self.mechanism.kind is MechanismKind.OPERANDS else None

    @property
    def is_attention_pattern(self) -> bool:
        """Whether a rewrite of attention is at fault."""
        return self.part == Part.ATTENTION_PATTERNS or self.part.startswith("_sfdp_pattern_")

    @property
    def key(self) -> CauseKey:
        """The part of the cause that tells it from others, by the rule of docs/triage.md."""
        who, part, mechanism, measured = compiler_of(self.who), self.part, self.mechanism.kind, self.measured
        if self.stage is Stage.OPERATION:
            who = EAGER  # whichever subject called it
        if self.stage is Stage.KERNEL and mechanism is MechanismKind.NOT_FINITE:
            mechanism = MechanismKind.WRONG_VALUES
        is_of_one = mechanism in _OF_ONE_PATTERN or (measured and measured.right.keys() <= {*ATTENDED})
        if self.is_attention_pattern and not is_of_one:
            part = Part.ATTENTION_PATTERNS
        if measured is None:
            return CauseKey(who, self.stage, part, mechanism, self.mechanism.details)
        return CauseKey(who, self.stage, part, mechanism, (), details(**measured.right), details(**measured.wrong))
