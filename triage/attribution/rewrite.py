"""Which rewrite of the graph is at fault, and how: measured where that is possible, else found by experiments."""

import re
from collections.abc import Iterator
from dataclasses import replace

from fuzz.bug_identity import VALUES, attention_patterns, rewrites
from fuzz.protocol.controls import Control, NotMeasured, PassDiffers, PatternMatched
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.case import Case
from triage.attribution.experiments import Hypothesis, Study, mechanism_of, passes
from triage.attribution.function_cause import blame_fused_call, find_condition, layout_mechanism
from triage.attribution.perturbations import with_float_divisors
from triage.attribution.root_cause import (
    PATTERNS,
    CaseChange,
    Compared,
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
    return _find_pass_cause(study)


def _find_pass_cause(study: Study) -> RootCause:
    """The pass that changes what the graph computes; where that can't be compared, the rewrite without which the case
    passes."""
    mechanism = mechanism_of(study.result)
    unseen: list[Evidence] = []
    for first in study.judge(Control("passes_compared")).observations:
        unseen += [Compared(first)] if isinstance(first, NotMeasured) else []
        if isinstance(first, PassDiffers):
            off = Control("without_rewrite", first.rewrite) if first.rewrite else Control("without_pass", first.name)
            part, without = first.rewrite or first.name, Experiment(passes(study.judge(off)), control=off)
            shown: list[Evidence] = [Compared(first), *([without] if without.passes else [])]
            return RootCause("inductor", Stage.GRAPH_PASSES, part, mechanism, tuple(shown))
    without_patterns = study.try_control("pattern_matcher_off")
    fired = [*sorted(rewrites(study.result.fired)), *study.result.fired] if without_patterns.passes else []
    for name in dict.fromkeys(fired):
        without = study.try_control("without_rewrite", name)
        if without.passes:
            return RootCause("inductor", Stage.GRAPH_PASSES, name, mechanism, (*unseen, without))
    return RootCause("inductor", Stage.GRAPH_PASSES, "", mechanism, (*unseen, without_patterns))


def _read_measured_cause(wrong: tuple[WrongRewrite, ...]) -> RootCause:
    """What is proven, and needs no experiment. Of several rewrites that are wrong the first is the cause."""
    first = wrong[0]
    mechanism = Mechanism(MechanismKind.OTHER_RESULT)
    if first.is_of_strides:
        mechanism = Mechanism(MechanismKind.STRIDES)
    elif first.constants:
        mechanism = Mechanism(MechanismKind.CONSTANTS_IGNORED)
    elif first.rows:
        mechanism = Mechanism(MechanismKind.EMPTY_ROWS)
    elif first.right:
        mechanism = operands_mechanism(first)
    return RootCause("inductor", Stage.JOINT_PASSES, _part_of(first.pattern), mechanism, tuple(map(Measured, wrong)))


def _part_of(pattern: str) -> str:
    """A pattern by its number, in whatever form it fired."""
    found = _NUMBER.search(pattern)
    return f"_sfdp_pattern_{found[1]}" if found else pattern


def _find_attention_cause(study: Study, without_attention: Experiment) -> RootCause:
    """The cause of what can't be measured: an error, or a program that torch hides."""
    ranks: dict[str, dict[str, int]] = {}
    seen = study.judge(Control("matches_recorded")).observations
    for match in sorted((one for one in seen if isinstance(one, PatternMatched)), key=lambda match: match.pattern):
        if found := _NUMBER.search(match.pattern):
            ranks.setdefault(found[1], match.ranks)
    number, shown = _find_pattern(study, [*ranks], without_attention)
    part = f"_sfdp_pattern_{number}" if number else PATTERNS
    mechanism = mechanism_of(study.result, MechanismKind.OTHER_RESULT if study.result.verdict in VALUES else None)
    held = study.find(_hypotheses(study.case, ranks.get(number, {})))
    if held is not None:
        mechanism, tried = held
        shown = [*shown, tried]
    return RootCause("inductor", Stage.JOINT_PASSES, part, mechanism, tuple(shown))


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


def _find_fused_call_cause(study: Study, part: str, without_attention: Experiment) -> RootCause:
    """A replacement that is right and calls an operation that is not: by which mistake, if that can be found."""
    device = study.evaluator.hello.device
    copied = study.try_control("sdpa", "operands_copied")
    shown = (without_attention, FusedCall(part))
    if copied.passes:
        return blame_fused_call(device, layout_mechanism(study.case), (*shown, copied))
    # A program that the pattern leaves alone has no fused call.
    mechanism, said = find_condition(replace(study, rewrite=part.removeprefix("_")))
    return blame_fused_call(device, mechanism, (*shown, *said))


def _hypotheses(case: Case, ranks: dict[str, int]) -> Iterator[Hypothesis]:
    """Mistakes by which compiling raises that a match with tensors of these ranks allows."""
    rank = ranks.get("attn_mask", ranks.get("causal_mask"))
    if {"inv_scale", "scale_factor"} & ranks.keys():
        yield Hypothesis(Mechanism(MechanismKind.TENSOR_AS_SCALE), Control("sdpa", "scale_as_tensor"), error="'scale'")
    if rank is not None:
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
    yield Hypothesis(Mechanism(MechanismKind.CONSTANTS_IGNORED), Control("constants_compared"))
