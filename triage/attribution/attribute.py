"""From a case to its root cause, with the evidence."""

import itertools
from dataclasses import replace

from corpus.entry import Entry
from fuzz.bug_identity import PROCESS, SILENT
from fuzz.evaluator import Evaluator
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import Control, DecompositionDiffers, KernelDiffers, NotMeasured
from fuzz.subjects import get_spec, is_user_function
from generators.errors import UserError
from generators.program.case import FurtherCall
from generators.program.further_calls import at_call, list_differences
from generators.program.memory import is_written, list_targets
from generators.program.ops import OPS
from triage.attribution import ablation as subjects
from triage.attribution.ablation import Ablation, find_cheapest, run_ablation
from triage.attribution.experiments import Study, mechanism_of, passes
from triage.attribution.function_cause import find_kernel_cause, find_operation_cause, find_place
from triage.attribution.rewrite import find_rewrite_cause
from triage.attribution.root_cause import (
    CaseChange,
    Compared,
    Evidence,
    Experiment,
    Mechanism,
    MechanismKind,
    NoControls,
    RootCause,
    Stage,
)

_SYMBOLIC = "passes_dynamic"
_BEFORE_CODEGEN = (
    (subjects.AOT_EAGER, "aot", Stage.DYNAMO, ""),
    (subjects.DECOMPOSED, "aot", Stage.DYNAMO, "decompositions or the partitioner"),
    ("export", "aot", Stage.DYNAMO, "torch.export"),
    (subjects.PASSES, "inductor", Stage.GRAPH_PASSES, ""),
)
"""Stages of the ablation before code generation, and who is at fault, where, if one is the first that fails."""


def attribute(entry: Entry, evaluator: Evaluator, ablation: Ablation | None = None) -> RootCause:
    """Say who is at fault by what, after the ablation and under controls; `ablation`: one that was run before.

    Raises UserError where the case shows no bug, or can't be judged.
    """
    is_attention = is_user_function(entry.subject) or get_spec(entry.subject).is_attention
    if ablation is None and is_attention:
        ablation = run_kernel_ablation(entry, evaluator)
    ablation = ablation or run_ablation(entry, evaluator, full=False)
    result = ablation.result
    if not result.verdict.is_finding:
        raise UserError(f"case {entry.case.id} shows no bug under torch {ablation.hello.torch}: {result.verdict}")
    study = Study(evaluator, entry.case, ablation.accused, result)
    if result.verdict in PROCESS:
        return _find_lost_cause(study, ablation, is_attention=is_attention)
    if result.verdict is Verdict.EAGER_SUSPECT:
        return find_operation_cause(replace(study, subject=subjects.EAGER))
    if is_attention:
        return find_kernel_cause(study, ablation)
    cause = _find_compiler_cause(entry, study, ablation)
    if cause.is_attention_pattern or result.verdict not in SILENT:
        return cause
    return _find_state(replace(study, subject=find_cheapest(ablation, entry)), cause)


def run_kernel_ablation(entry: Entry, evaluator: Evaluator) -> Ablation:
    """Eager, PyTorch's MATH backend and the attention function that the case is about. Raises UserError."""
    if entry.subject not in evaluator.hello.attention:
        raise UserError(f"{entry.subject} is neither an attention function (see docs/kernels.md) nor torch.compile")
    names = dict.fromkeys((subjects.EAGER, subjects.MATH, entry.subject))
    stages = {name: evaluator.evaluate_or_raise(entry.case, name) for name in names}
    return Ablation(evaluator.hello, stages, entry.subject)


def _find_lost_cause(study: Study, ablation: Ablation, *, is_attention: bool) -> RootCause:
    """The cause of a lost process, by the ablation alone: each control would cost a process, and as long as a hang."""
    result = study.result
    identity = result.failure.identity() if result.failure is not None else ""
    who, stage, part = "inductor", Stage.CODEGEN, ""
    if is_attention:
        who, stage, part = ablation.accused, Stage.KERNEL, find_place(study.case, result)
    elif ablation.accused == subjects.EAGER:
        who, stage = "eager", Stage.OPERATION
    else:
        first = next((one for one in _BEFORE_CODEGEN if ablation.fails(one[0])), None)
        who, stage = first[1:3] if first else (who, stage)
    return RootCause(who, stage, part, Mechanism(MechanismKind.of(result.verdict), identity), (NoControls(),))


def _find_compiler_cause(entry: Entry, study: Study, ablation: Ablation) -> RootCause:
    def make_experiment(stage: str) -> Experiment:
        return Experiment(passes(ablation.stages.get(stage)), subject=stage)

    for name, who, stage, within in _BEFORE_CODEGEN[:3]:
        if ablation.fails(name):
            part = within
            evidence: list[Evidence] = [*map(make_experiment, dict.fromkeys((subjects.AOT_EAGER, name)))]
            if name == subjects.DECOMPOSED:
                compared = Control("decompositions_compared")
                for seen in replace(study, subject=subjects.EAGER).judge(compared).observations:
                    if isinstance(seen, DecompositionDiffers):
                        part, evidence = f"decomposition of {seen.operation}", [Compared(seen), *evidence]
            mechanism = mechanism_of(study.result, MechanismKind.OTHER_VALUES)
            return RootCause(who, stage, part, mechanism, tuple(evidence))
    evaluator, case = study.evaluator, entry.case
    study = replace(study, subject=find_cheapest(ablation, entry))
    before = [make_experiment(subjects.DECOMPOSED), make_experiment(subjects.PASSES)]
    if ablation.fails(subjects.PASSES):
        cause = find_rewrite_cause(replace(study, result=ablation.stages[subjects.PASSES]))
    elif study.subject == subjects.DYNAMIC and passes(evaluator.judge(case, _SYMBOLIC)) is False:
        before.append(Experiment(False, subject=_SYMBOLIC))
        cause = find_rewrite_cause(replace(study, subject=_SYMBOLIC, result=evaluator.judge(case, _SYMBOLIC)))
    elif (without_patterns := study.try_control("pattern_matcher_off")).passes:
        before.append(without_patterns)
        cause = find_rewrite_cause(study)
    else:
        if ablation.accused == subjects.DYNAMIC and ablation.fails(subjects.INDUCTOR) is False:
            before.append(make_experiment(subjects.INDUCTOR))
        cause = _find_codegen_cause(study)
    return replace(cause, evidence=(*before, *cause.evidence))


def _find_codegen_cause(study: Study) -> RootCause:
    """What is at fault below the graph passes."""
    mechanism = mechanism_of(study.result, MechanismKind.of(study.result.verdict))
    # With each operation in a kernel of its own, the kernel at fault names its operation.
    apart, compared = Control("unfused"), Control("kernels_compared")
    result = study.judge(compared, apart)
    tried = [Experiment(passes(result), control=apart)]
    shown = _list_wrong_kernels(result)
    for first in shown:
        *_, operation = first.operations
        without = study.try_control("eager", operation.removeprefix("aten."))
        if without.passes:
            part = without.control.argument if without.control else ""
            return RootCause("inductor", Stage.LOWERING, part, mechanism, (Compared(first), without))
    fused = result if shown else study.judge(compared)
    shown = shown or _list_wrong_kernels(fused)
    unseen = [Compared(one) for one in fused.observations if isinstance(one, NotMeasured)]
    lowerings = [] if shown else _find_lowerings(study)
    # Every lowering that is left to eager breaks a fusion, so a single one is at fault only where no other passes too.
    if len(lowerings) == 1:
        control = lowerings[0].control
        return RootCause("inductor", Stage.LOWERING, control.argument if control else "", mechanism, tuple(lowerings))
    measured = [*unseen, *map(Compared, shown)]
    if not tried[0].passes:
        tried.append(study.try_control("unvectorized"))
    part = ("fusion", "vectorised code")[len(tried) - 1] if tried[-1].passes else ""
    evidence = tried[-1:] if part else tried
    return RootCause("inductor", Stage.CODEGEN, part, mechanism, (*measured, *evidence, *lowerings))


def _list_wrong_kernels(result: SubjectResult) -> list[KernelDiffers]:
    return [one for one in result.observations if isinstance(one, KernelDiffers) and one.operations]


def _find_state(study: Study, cause: RootCause) -> RootCause:
    """The cause, with what it takes where the case needs a later call or a write."""
    case, mechanism = study.case, cause.mechanism
    if is_written(case):
        kinds = sorted({op.kind for op in case.ops if OPS[op.kind].writes})
        mechanism = Mechanism(MechanismKind.WRITTEN, f"{' and '.join(list_targets(case))} by {', '.join(kinds)}")
    calls = (FurtherCall(), *case.calls) if case.calls else ()
    alone = [study.try_case(at_call(case, call), CaseChange.CALLS_APART) for call in calls]
    if not (alone and all(one.passes for one in alone)):
        return replace(cause, mechanism=mechanism)
    told = [" and ".join(list_differences(case)) or "nothing changed", *([str(mechanism)] if is_written(case) else [])]
    mechanism = Mechanism(MechanismKind.LATER_CALL, ", and ".join(told))
    return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, alone[0]))


def _find_lowerings(study: Study) -> list[Experiment]:
    """The first two lowerings without which it passes, each by itself."""
    reached = (item.partition(" ") for item in study.result.reached)
    names = dict.fromkeys(name.removeprefix("aten.") for kind, _, name in reached if kind == "lowering")
    return list(itertools.islice((e for e in (study.try_control("eager", n) for n in names) if e.passes), 2))
