"""A root cause: where a fault is, how it works, and the experiments that show it, as data and in sentences."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from corpus.causes import DETAIL_LABELS, CauseKey, Details, Mechanism, MechanismKind, Part, Stage, details
from fuzz.experiments import (
    EXPERIMENTS,
    OperandValue,
    OtherSubject,
    Outcome,
    ReplacementAlone,
    StepLimit,
    Tried,
    WithoutAxis,
    WithSetting,
)
from fuzz.protocol import EAGER, Verdict
from fuzz.protocol.places import Place
from fuzz.protocol.render import describe_failure
from fuzz.protocol.rewrites import QKV, WrongRewrite
from fuzz.subjects import compiler_of
from generators.records import KEYED, SORTED

_OF_ONE_PATTERN = {MechanismKind.OTHER_RESULT, MechanismKind.FORM}
_OF_ONE_PATTERN |= {MechanismKind(verdict) for verdict in Verdict if verdict.is_lost or verdict.is_silent}
"""With these mechanisms, two attention patterns are two bugs."""
_WORDS = {Outcome.PASSES: "passes", Outcome.FAILS_ALIKE: "fails", Outcome.FAILS_OTHERWISE: "fails"}


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a fault is and how it works."""

    who: str
    """At fault: `inductor`, `eager`, `dynamo`, `aot`, or the attention function."""
    stage: Stage
    part: str
    """A `Part`, or a name that torch or the function owns, such as `_sfdp_pattern_5`; "" if it is not known."""
    mechanism: Mechanism
    evidence: tuple[Tried, ...] = ()
    """The experiments that show it, with their outcomes."""
    rewrites: tuple[WrongRewrite, ...] = ()
    """The wrong rewrites of the case; the first is at fault."""
    decided_by: Annotated[Details, KEYED, SORTED] = ()
    """The experiments that show whether a failure has this cause, with their arguments (fuzz/attribution/decide.py)."""
    places: tuple[Place, ...] = ()
    """Where it is in the source of torch, the line at fault first (fuzz/attribution/locate.py)."""

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
        """The key by which causes are compared (docs/triage.md)."""
        who, part, mechanism, measured = compiler_of(self.who), self.part, self.mechanism.kind, self.measured
        if self.stage is Stage.OPERATION:
            who = EAGER  # eager is at fault, whichever subject called the operation
        if self.stage is Stage.KERNEL and mechanism is MechanismKind.NOT_FINITE:
            mechanism = MechanismKind.WRONG_VALUES
        is_of_one = mechanism in _OF_ONE_PATTERN or (measured and measured.right.keys() <= {*QKV})
        if self.is_attention_pattern and not is_of_one:
            part = Part.ATTENTION_PATTERNS
        if measured is None:
            return CauseKey(who, self.stage, part, mechanism, self.mechanism.details)
        return CauseKey(who, self.stage, part, mechanism, (), details(**measured.right), details(**measured.wrong))


def describe_evidence(cause: RootCause, shown: Collection[str] = ()) -> list[str]:
    """The evidence of a root cause, a sentence for each change and outcome.

    `shown`: subjects whose verdicts a table shows.
    """

    def group(tried: Tried) -> tuple[str, str]:
        is_subject = isinstance(tried.row.change, OtherSubject)
        return _WORDS.get(tried.outcome, ""), "" if is_subject else tried.experiment

    evidence = [
        tried
        for tried in cause.evidence
        if not (isinstance(tried.row.change, OtherSubject) and tried.experiment in shown)
        if not (isinstance(tried.row.change, WithSetting | WithoutAxis) and tried.outcome.fails)  # most change nothing
    ]
    return [_describe(list(alike), cause) for _, alike in itertools.groupby(evidence, group)]


def _describe(alike: list[Tried], cause: RootCause) -> str:
    first, name = alike[0], alike[0].argument
    is_step = isinstance(first.row.change, StepLimit)
    if first.outcome is Outcome.NOT_TRIED:
        cut = f"a search for the {first.row.part or first.experiment} at fault" if is_step else ""
        labels = (one.row.label.format(DETAIL_LABELS.get(one.argument, one.argument)) for one in alike)
        return f"The time was too short for a run with {cut or ', '.join(labels)}."
    if isinstance(first.row.change, ReplacementAlone):
        in_eager = first.row.change.in_eager
        if first.outcome.fails:
            return " ".join(_describe_rewrite(one) for one in cause.rewrites if bool(one.faulty) is in_eager)
        return f"In float64 the replacement of {name} is right, so the kernel of its fused call is at fault."
    if is_step:
        label = first.row.label.format(name)
        return f"With {label} it passes; with `{name}` on again it fails."
    changes = dict[str, list[str]]()
    for one in alike:
        # Without an argument, all steps that the experiment may name are off.
        changes.setdefault(one.row.label, []).append(DETAIL_LABELS.get(one.argument, one.argument) or "of every name")
    words = " or ".join(label.format(" or ".join(arguments)) for label, arguments in changes.items())
    return f"It {_WORDS.get(first.outcome, 'gives no verdict')} with {words}."


def _describe_rewrite(rewrite: WrongRewrite) -> str:
    """The operands for which a rewrite is right and wrong, the constants that differ, or the wrong operation."""
    if rewrite.faulty:
        of = f"In eager, on the operands of this case, the replacement of `{rewrite.pattern}` is wrong"
        return f"{of}: {describe_failure(rewrite.faulty)}."
    if rewrite.strides:
        return f"The replacement of `{rewrite.pattern}` orders the dimensions of its output in memory in another way."
    of = "In float64, on the operands of this case, the replacement of"
    said = [f"{of} `{rewrite.pattern}` gives another result than the program."]
    said += ["They differ only in rows whose mask keeps no key."] if rewrite.rows else []
    for name in rewrite.right:
        right, wrong = (_describe_values(which.get(name, ())) for which in (rewrite.right, rewrite.wrong))
        said.append(f"It is right where `{name}` is {right}{f'; wrong where it is {wrong}' if wrong else ''}.")
    for constant in rewrite.constants:
        values = f"The pattern has {constant.operation} with {constant.pattern}, the program with {constant.program}."
        differ = f"The program and the pattern differ in the constants of {constant.operation}."
        said.append(values if constant.program else differ)
    if not rewrite.right and not rewrite.constants and not rewrite.rows:
        said.append("No value of an operand makes it right, and no constant differs.")
    return " ".join(said)


def _describe_values(changes: tuple[str, ...]) -> str:
    """The values that experiments give an operand: "1 or 2 throughout, or 0 and 1 mixed"."""
    rows = [EXPERIMENTS[change] for change in changes if change in EXPERIMENTS]
    whole = " or ".join(
        f"{row.change.number:g}" for row in rows if isinstance(row.change, OperandValue) and row.change.rest is None
    )
    axes = [row.label for row in rows if row.is_uniform and not isinstance(row.change, OperandValue)]
    words = [f"{whole} throughout" if whole else "", *axes]
    words += ["0 and 1 mixed"] if {"one 0 in 1", "one 1 in 0"} <= {*changes} else []
    return ", or ".join(filter(None, words))
