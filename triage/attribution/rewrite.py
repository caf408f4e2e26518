"""Which rewrite of the graph is at fault, and how: measured where that is possible, else found by experiments."""

import re
from collections.abc import Iterator
from dataclasses import replace

from fuzz.bug_identity import SILENT, VALUES, attention_patterns, rewrites
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import ConstantDiffers, ConstantsNotCompared, Control, Operand, PatternMatched
from fuzz.protocol.render import describe
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.case import Case
from triage.attribution.experiments import Hypothesis, Study, mechanism_of, passes
from triage.attribution.function_cause import find_condition, fused_call_cause, layout_mechanism
from triage.attribution.perturbations import with_float_divisors
from triage.attribution.root_cause import (
    PATTERNS,
    CaseChange,
    Evidence,
    Experiment,
    FusedCall,
    Measured,
    Mechanism,
    MechanismKind,
    RootCause,
    Stage,
    operands_mechanism,
)

_NUMBER = re.compile(r"sfdp_pattern_(\d+)")


def find_rewrite_cause(study: Study) -> RootCause:
    """Who among the rewrites is at fault."""
    if study.result.rewrites:
        return _read_measured_cause(study.result.rewrites)
    without_attention = study.try_control("without_attention_patterns")
    if without_attention.passes:
        right = [_part_of(pattern) for pattern in study.result.right_rewrites]
        are_right = {f"_{name}" for name in attention_patterns(study.result.fired)} <= {*right}
        if study.result.verdict in VALUES and right and are_right:
            return _find_fused_call_cause(study, right[0], without_attention)
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


def _read_measured_cause(wrong: tuple[WrongRewrite, ...]) -> RootCause:
    """What is proven, and needs no experiment. Of several rewrites that are wrong the first is the cause."""
    first = wrong[0]
    mechanism = Mechanism(MechanismKind.OTHER_RESULT)
    if first.operations == {"strides"}:
        mechanism = Mechanism(MechanismKind.STRIDES)
    elif first.constants:
        mechanism = Mechanism(MechanismKind.CONSTANTS_IGNORED)
    elif first.right:
        mechanism = operands_mechanism(first)
    return RootCause("inductor", Stage.JOINT_PASSES, _part_of(first.pattern), mechanism, tuple(map(Measured, wrong)))


def _part_of(pattern: str) -> str:
    """A pattern by its number, in whatever form it fired."""
    found = _NUMBER.search(pattern)
    return f"_sfdp_pattern_{found[1]}" if found else pattern


def _find_attention_cause(study: Study, without_attention: Experiment) -> RootCause:
    """The cause of what can't be measured: an error, or a program that torch hides."""
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
    is_value = study.result.verdict in VALUES
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


def _find_fused_call_cause(study: Study, part: str, without_attention: Experiment) -> RootCause:
    """A replacement that is right and calls an operation that is not: by which mistake, if that can be found."""
    device = study.evaluator.hello.device
    copied = study.try_control("sdpa", "operands_copied")
    shown = (without_attention, FusedCall(part))
    if copied.passes:
        return fused_call_cause(device, layout_mechanism(study.case), (*shown, copied))
    # A program that the pattern leaves alone has no fused call.
    mechanism, said = find_condition(replace(study, rewrite=part.removeprefix("_")))
    return fused_call_cause(device, mechanism, (*shown, *said))


def _hypotheses(case: Case, operands: tuple[Operand, ...]) -> Iterator[Hypothesis]:
    """Mistakes by which compiling raises that the operands of the match allow."""
    tensors = {operand.name: operand for operand in operands if operand.is_tensor}
    mask = tensors.get("attn_mask") or tensors.get("causal_mask")
    if {"inv_scale", "scale_factor"} & tensors.keys():
        yield Hypothesis(Mechanism(MechanismKind.TENSOR_AS_SCALE), Control("sdpa", "scale_as_tensor"), error="'scale'")
    if mask is not None:
        rank = len(mask.shape)
        kind = MechanismKind.MASK_OF_RANK if rank < 2 else MechanismKind.MASK_BROADCASTS
        yield Hypothesis(Mechanism(kind, str(rank) if rank < 2 else ""), Control("sdpa", "mask_expanded"))
    divided = with_float_divisors(case)
    if divided is not None:
        yield Hypothesis(
            Mechanism(MechanismKind.INTEGER_DIVISOR),
            change=CaseChange.FLOAT_DIVISOR,
            case=divided,
            error="list index out of range",
        )
