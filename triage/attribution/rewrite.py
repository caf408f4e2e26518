"""Which rewrite of the graph is at fault, and by which mistake. Each is switched off, then changed, by itself."""

import re
from collections.abc import Iterator
from dataclasses import replace

from fuzz.bug_identity import SILENT, VALUES, rewrites
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import ConstantDiffers, ConstantsNotCompared, Control, Operand, PatternMatched
from fuzz.protocol.render import describe
from generators.program.case import Case
from triage.attribution.experiments import Hypothesis, Study, mechanism_of, passes
from triage.attribution.function_cause import find_condition, fused_call_cause, layout_mechanism
from triage.attribution.perturbations import with_float_divisors, with_zero_one_masks
from triage.attribution.root_cause import (
    PATTERNS,
    CaseChange,
    Evidence,
    Experiment,
    FusedCall,
    Mechanism,
    MechanismKind,
    RootCause,
    Stage,
)

_NUMBER = re.compile(r"sfdp_pattern_(\d+)")


def find_rewrite_cause(study: Study) -> RootCause:
    """Who among the rewrites is at fault."""
    without_attention = study.try_control("without_attention_patterns")
    if without_attention.passes:
        return _find_attention_cause(study, without_attention)
    without_patterns = study.try_control("pattern_matcher_off")
    mechanism = mechanism_of(study.result)
    if without_patterns.passes:
        names = [*sorted(rewrites(study.result.fired)), *study.result.fired]
        for name in dict.fromkeys(names):
            without = study.try_control("without_rewrite", name)
            if without.passes:
                return RootCause("inductor", Stage.GRAPH_PASSES, name, mechanism, (without,))
    return RootCause("inductor", Stage.GRAPH_PASSES, "", mechanism, (without_patterns,))


def _find_attention_cause(study: Study, without_attention: Experiment) -> RootCause:
    recorded = study.judge(Control("matches_recorded")).observations
    operands: dict[str, tuple[Operand, ...]] = {}
    for match in sorted(
        (item for item in recorded if isinstance(item, PatternMatched)), key=lambda match: match.pattern
    ):
        if found := _NUMBER.search(match.pattern):
            operands.setdefault(found[1], match.operands)
    number, shown = _find_pattern(study, [*operands], without_attention)
    part = f"_sfdp_pattern_{number}" if number else PATTERNS

    def cause(mechanism: Mechanism, *more: Evidence) -> RootCause:
        return RootCause("inductor", Stage.JOINT_PASSES, part, mechanism, (*shown, *more))

    held = study.find(_hypotheses(study.case, operands.get(number, ())))
    if held is not None:
        return cause(*held)
    compared = study.judge(Control("constants_compared"))
    differ = dict.fromkeys(item for item in compared.observations if isinstance(item, ConstantDiffers))
    tried = Experiment(passes(compared), control=Control("constants_compared"))
    if differ and tried.passes:
        return cause(Mechanism(MechanismKind.CONSTANTS_IGNORED), tried, *differ)
    more: list[Evidence] = [*differ] or [_find_why_not_compared(compared) or tried]
    by_steps = study.try_control("sdpa", "by_steps")
    more += [by_steps] if by_steps.passes else []
    is_value = study.result.verdict in VALUES
    if by_steps.passes and is_value:
        return _find_fused_call_cause(study, part, (*shown, *more))
    return cause(mechanism_of(study.result, MechanismKind.OTHER_RESULT if is_value else None), *more)


def _find_pattern(study: Study, numbers: list[str], without_all: Experiment) -> tuple[str, list[Experiment]]:
    """The number of the pattern at fault, "" where none matched, and the experiments that show it."""
    for number in numbers:
        without = study.try_control("without_pattern", number)
        if without.passes:
            return number, [without]
    # One takes what another leaves: look at each by itself.
    alone = [study.try_control("only_pattern", number) for number in numbers]
    failing = [number for number, tried in zip(numbers, alone, strict=True) if tried.passes is False]
    return next(iter([*failing, *numbers]), ""), [without_all, *alone]


def _find_why_not_compared(compared: SubjectResult) -> ConstantsNotCompared | None:
    """Why nothing is known of the constants where none differs; None where they were compared."""
    for item in compared.observations:
        if isinstance(item, ConstantsNotCompared):
            return item
    if compared.verdict is Verdict.OK or compared.verdict in SILENT:
        return None
    return ConstantsNotCompared("", ": ".join(filter(None, [compared.verdict.value, describe(compared)])))


def _find_fused_call_cause(study: Study, part: str, evidence: tuple[Evidence, ...]) -> RootCause:
    """A replacement that is right and calls an operation that is not: by which mistake, if that can be found."""
    device = study.evaluator.hello.device
    copied = study.try_control("sdpa", "operands_copied")
    shown = (*evidence, FusedCall(part))
    if copied.passes:
        return fused_call_cause(device, layout_mechanism(study.case), (*shown, copied))
    # A program that the pattern leaves alone has no fused call.
    mechanism, said = find_condition(replace(study, rewrite=part.removeprefix("_")))
    return fused_call_cause(device, mechanism, (*shown, *said))


def _hypotheses(case: Case, operands: tuple[Operand, ...]) -> Iterator[Hypothesis]:
    """Mistakes that the operands of the match allow, the particular ones first."""
    tensors = {operand.name: operand for operand in operands if operand.is_tensor}
    mask = tensors.get("attn_mask") or tensors.get("causal_mask")

    def replaced(form: str, kind: MechanismKind, detail: str = "", error: str = "") -> Hypothesis:
        return Hypothesis(Mechanism(kind, detail), Control("sdpa", form), error=error)

    if {"inv_scale", "scale_factor"} & tensors.keys():
        yield replaced("scale_as_tensor", MechanismKind.TENSOR_AS_SCALE, error="'scale'")
    if mask is not None and mask.dtype == "bool":
        yield replaced("mask_added", MechanismKind.ADDED_MASK_HIDES)
    if mask is not None:
        rank = len(mask.shape)
        kind = MechanismKind.MASK_OF_RANK if rank < 2 else MechanismKind.MASK_BROADCASTS
        yield replaced("mask_expanded", kind, str(rank) if rank < 2 else "")
    yield replaced("operands_expanded", MechanismKind.DIMENSION_BROADCASTS)
    for kind, change, other, error in (
        (MechanismKind.INTEGER_DIVISOR, CaseChange.FLOAT_DIVISOR, with_float_divisors(case), "list index out of range"),
        (MechanismKind.INTEGER_MASK, CaseChange.ZERO_ONE_MASK, with_zero_one_masks(case), ""),
    ):
        if other is not None:
            yield Hypothesis(Mechanism(kind), change=change, case=other, error=error)
