"""From a case to its root cause, with the evidence."""

import re
from collections.abc import Callable
from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, Part, Stage, details
from corpus.entry import Entry
from fuzz.bug_identity import PROCESS, SILENT, VALUES, attention_patterns, kind_of
from fuzz.evaluator import Evaluator
from fuzz.protocol import Verdict
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.subjects import get_spec, is_user_function
from generators.errors import UserError
from generators.program.case import FurtherCall
from generators.program.further_calls import at_call, list_differences
from generators.program.memory import is_written, list_targets
from generators.program.ops import OPS
from triage.attribution import ablation as subjects
from triage.attribution.ablation import AOT_EAGER, Ablation, find_cheapest, run_ablation, subject_of
from triage.attribution.experiments import Study, mechanism_of, passes
from triage.attribution.function_cause import (
    blame_fused_call,
    find_condition,
    find_kernel_cause,
    find_operation_cause,
    find_place,
)
from triage.attribution.root_cause import (
    CaseChange,
    Evidence,
    Experiment,
    FusedCall,
    Measured,
    RootCause,
    operands_mechanism,
)

_SYMBOLIC = "passes_dynamic"
_BEFORE_CODEGEN = (
    (subjects.DYNAMO, "dynamo", Stage.DYNAMO, ""),
    (AOT_EAGER, "aot", Stage.DYNAMO, ""),
    (subjects.DECOMPOSED, "aot", Stage.DYNAMO, Part.DECOMPOSITIONS),
    ("export", "aot", Stage.DYNAMO, Part.TORCH_EXPORT),
    (subjects.PASSES, "inductor", Stage.GRAPH_PASSES, ""),
)
"""Stages of the ablation before code generation, and who is at fault, where, if one is the first that fails."""
_APART = (
    ("unpadded", Part.PADDING),
    ("casts_emulated", Part.CASTS),
    ("unfused", Part.FUSION),
    ("unvectorized", Part.VECTORISATION),
)
"""Ways to generate plainer code, each with the part at fault where that is right. The first is of GPUs alone."""
_NUMBER = re.compile(r"sfdp_pattern_(\d+)")


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
    return _find_state(replace(study, subject=find_cheapest(ablation, entry)), cause, entry)


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
    who, stage, part, value = "inductor", Stage.CODEGEN, "", ""
    if is_attention:
        who, stage, (part, value) = ablation.accused, Stage.KERNEL, find_place(study.case, result)
    elif ablation.accused == subjects.EAGER:
        who, stage = "eager", Stage.OPERATION
    else:
        first = next((one for one in _BEFORE_CODEGEN if ablation.fails(one[0])), None)
        who, stage = first[1:3] if first else (who, stage)
    return RootCause(who, stage, part, Mechanism(MechanismKind(result.verdict), details(error=identity, value=value)))


def _find_compiler_cause(entry: Entry, study: Study, ablation: Ablation) -> RootCause:
    def make_experiment(stage: str) -> Experiment:
        return Experiment(passes(ablation.stages.get(stage), study.result), subject=stage)

    for number, (name, who, stage, part) in enumerate(_BEFORE_CODEGEN[:-1]):
        # Dynamo is no part of torch.export; and what it gets wrong is wrong in all that follows.
        is_dynamo = name == subjects.DYNAMO
        if ablation.fails(name) and not (is_dynamo and ("export" in ablation.stages or not ablation.fails(AOT_EAGER))):
            before = [_BEFORE_CODEGEN[number - 1][0]] if number else []
            evidence: list[Evidence] = [*map(make_experiment, (*before, name))]
            # Of another failure the first decomposition would say nothing of this one.
            if name == subjects.DECOMPOSED and kind_of(ablation.stages[name].verdict) == kind_of(study.result.verdict):
                decomposed = replace(study, subject=subject_of(name, entry), result=ablation.stages[name])
                if (step := decomposed.bisect("decomposition")) is not None:
                    stage, part, evidence = Stage.DECOMPOSITION, step.name, [*evidence, step]  # noqa: PLW2901 - what is known more
            elif (
                name == AOT_EAGER
                and get_spec(entry.subject).recomputes
                and (kept := study.try_case(entry.case, CaseChange.KEPT, name)).passes
            ):
                part, evidence = Part.RECOMPUTATION, [*evidence, kept]  # noqa: PLW2901 - as above
            is_value = study.result.verdict in VALUES
            if is_dynamo and is_value and any(op.kind == "sdpa" for op in entry.case.ops):
                # Dynamo computes nothing: a fused call gives what it finds in memory, which was right in eager.
                condition, tried = find_condition(replace(study, subject=subject_of(name, entry)))
                if any(isinstance(one, Experiment) and one.passes for one in tried):
                    return blame_fused_call(study.evaluator.hello.device, condition, tried)
            mechanism = mechanism_of(study.result, MechanismKind.OTHER_VALUES if is_value else None)
            return RootCause(who, stage, part, mechanism, tuple(evidence))
    evaluator, case = study.evaluator, entry.case
    study = replace(study, subject=find_cheapest(ablation, entry))
    shown = [make_experiment(subjects.DECOMPOSED), make_experiment(subjects.PASSES)]
    find: Callable[[Study], RootCause] = find_rewrite_cause
    if ablation.fails(subjects.PASSES):
        study = replace(study, result=ablation.stages[subjects.PASSES])
    elif study.subject == subjects.DYNAMIC and passes(evaluator.judge(case, _SYMBOLIC), study.result) is False:
        shown.append(Experiment(False, subject=_SYMBOLIC))
        study = replace(study, subject=_SYMBOLIC, result=evaluator.judge(case, _SYMBOLIC))
    elif (without_patterns := study.try_control("pattern_matcher_off")).passes:
        shown.append(without_patterns)
    else:
        if ablation.accused == subjects.DYNAMIC and ablation.fails(subjects.INDUCTOR) is False:
            shown.append(make_experiment(subjects.INDUCTOR))
        find = _find_codegen_cause
    cause = find(study)
    return replace(cause, evidence=(*shown, *cause.evidence))


def find_rewrite_cause(study: Study) -> RootCause:
    """Which pass or rewrite of the graph is at fault: measured where that is possible, else the first step with which
    the case fails."""
    result = study.result
    of_strides = {rewrite.pattern for rewrite in result.rewrites if rewrite.is_of_strides and result.verdict in VALUES}
    if wrong := tuple(rewrite for rewrite in result.rewrites if rewrite.pattern not in of_strides):
        return _read_measured_cause(wrong)
    step = study.bisect("pass")
    if step is None:
        return RootCause("inductor", Stage.GRAPH_PASSES, "", mechanism_of(result))
    if not _NUMBER.search(step.name):
        return RootCause("inductor", Stage.GRAPH_PASSES, step.name, mechanism_of(result), (step,))
    part, right = _part_of(step.name), {*map(_part_of, (*result.right_rewrites, *of_strides))}
    if result.verdict in VALUES and {f"_{name}" for name in attention_patterns(result.fired)} <= right:
        # A program that the pattern leaves alone has no fused call.
        mechanism, said = find_condition(replace(study, rewrite=part.removeprefix("_")))
        return blame_fused_call(study.evaluator.hello.device, mechanism, (step, FusedCall(part), *said))
    mechanism = mechanism_of(result, MechanismKind.OTHER_RESULT if result.verdict in VALUES else None)
    return RootCause("inductor", Stage.JOINT_PASSES, part, mechanism, (step,))


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


def _find_codegen_cause(study: Study) -> RootCause:
    """What is at fault below the graph passes."""
    mechanism, tried = mechanism_of(study.result, MechanismKind(study.result.verdict)), list[Evidence]()
    if get_spec(study.subject).is_exported:  # what torch.compile generates is right
        return RootCause("inductor", Stage.CODEGEN, Part.AOT_INDUCTOR_PACKAGE, mechanism)
    for control, part in _APART[study.evaluator.hello.device == "cpu" :]:
        if (experiment := study.try_control(control)).passes:
            return RootCause("inductor", Stage.CODEGEN, part, mechanism, (experiment,))
        tried.append(experiment)
    step = study.bisect("lowering")
    if step is not None:
        return RootCause("inductor", Stage.LOWERING, step.name, mechanism, (step,))
    return RootCause("inductor", Stage.CODEGEN, "", mechanism, tuple(tried))


def _find_state(study: Study, cause: RootCause, entry: Entry) -> RootCause:
    """The cause, with what it takes where the case needs a later call or a write; that of a call which fails alone."""
    case, mechanism, write = study.case, cause.mechanism, {}
    if is_written(case) and study.result.verdict in VALUES:
        write = {"into": list_targets(case), "by": sorted({op.kind for op in case.ops if OPS[op.kind].writes})}
        mechanism = Mechanism(MechanismKind.WRITTEN, details(**write))
    calls = (FurtherCall(), *case.calls) if case.calls else ()
    alone = [study.try_case(at_call(case, call), CaseChange.CALLS_APART) for call in calls]
    failing = next((call for call, one in zip(calls, alone, strict=True) if one.passes is False), None)
    if failing is not None:
        return attribute(replace(entry, case=at_call(case, failing)), study.evaluator)
    if not (alone and all(one.passes for one in alone)):
        return replace(cause, mechanism=mechanism)
    kind = MechanismKind.LATER_CALL_AND_WRITE if write else MechanismKind.LATER_CALL
    mechanism = Mechanism(kind, details(changed=list_differences(case) or "nothing", **write))
    return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, alone[0]))
