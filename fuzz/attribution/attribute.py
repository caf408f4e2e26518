"""From a case to its root cause. The kind of failure decides which experiments find it.

- Lost process: the first stage of the ablation that fails, and the operation that ran when the process was lost. No
  other experiment follows, because each costs a process.
- Eager: the operation that eager computes wrongly, and the edit of the case that makes it right.
- Compiler that is no part of torch: fuzz/attribution/foreign.py.
- Attention function: the options whose removal makes a call right.
- Compiler: the first stage that fails, and within it the first experiment of `NARROWER` that flips. Within the graph
  passes: a wrong operation that a rewrite calls, a wrong rewrite, else the pass found by bisection. Then what of the
  program the failure needs: fuzz/attribution/needs.py.
"""

import math
from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, Stage, details
from corpus.entry import Entry
from fuzz.ask.question import Asker
from fuzz.attribution.ablation import (
    AOT_EAGER,
    DYNAMIC,
    DYNAMO,
    EAGER,
    EXPORTED,
    INDUCTOR,
    MATH,
    PASSES,
    Ablation,
    is_other_compiler,
    run_ablation,
)
from fuzz.attribution.decide import find_deciding
from fuzz.attribution.edits import OTHER_WRITE, OVERLAPPING, list_low_precision
from fuzz.attribution.foreign import find_foreign_cause
from fuzz.attribution.needs import find_need
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, mechanism_of, subject_of
from fuzz.bug_identity import attention_patterns, compare_outcome, contract_features, operation_of
from fuzz.error_location import name_gradient
from fuzz.experiments import DECOMPOSED, EXPERIMENTS, NARROWER, NO_PATTERNS, SYMBOLIC, Outcome, Trial, Tried
from fuzz.protocol import Running, SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, EmptyRowsNotZero, FailureKey, FaultyOperation
from fuzz.protocol.rewrites import EXPANDED, SDPA, WrongRewrite, find_attention_pattern
from fuzz.subjects import find_backend, get_spec, is_attention
from generators.errors import UserError
from generators.program.attention_options import COMPARABLE
from generators.program.case import Case
from generators.program.edits import prune_if_valid

_STAGES = (DYNAMO, AOT_EAGER, DECOMPOSED, EXPORTED[0], PASSES, INDUCTOR, DYNAMIC, EXPORTED[1])
_SDPA = "sdpa_"

_MECHANISMS = {
    Verdict.OUT_OF_BOUNDS: MechanismKind.WRITES,
    Verdict.NONDETERMINISTIC: MechanismKind.RESULTS_DIFFER,
    Verdict.METADATA: MechanismKind.FORM,
    Verdict.NONFINITE: MechanismKind.NOT_FINITE,
    Verdict.WRONG_RESULT: MechanismKind.WRONG_VALUES,
    Verdict.WRONG_GRADIENT: MechanismKind.WRONG_VALUES,
}


def find_cause(entry: Entry, asker: Asker) -> RootCause:
    """As `attribute`, with the experiments that decide whether another failure has this cause."""
    ablation = run_ablation(entry, asker, full=False)
    cause = attribute(entry, asker, ablation)
    study = study_cheapest(entry, asker, ablation)
    return replace(cause, decided_by=cause.decided_by or find_deciding(study, cause))


def study_cheapest(entry: Entry, asker: Asker, ablation: Ablation | None = None) -> Study:
    """The failure of a finding under the subject that shows it in the least time; `ablation`: as of `attribute`."""
    ablation = ablation or run_ablation(entry, asker, full=False)
    stage = ablation.cheapest
    return Study(asker, entry, subject_of(stage, entry), ablation.stages[stage])


def attribute(entry: Entry, asker: Asker, ablation: Ablation | None = None, *, deadline: float = math.inf) -> RootCause:
    """The root cause of a finding; `ablation`: an earlier ablation of it; `deadline`: as of `Study`.

    Raises UserError if the case shows no bug, or can't be judged.
    """
    ablation = ablation or run_ablation(entry, asker, full=False)
    result = ablation.result
    if not result.verdict.is_finding:
        raise UserError(f"case {entry.case.id} shows no bug under torch {ablation.hello.torch}: {result.verdict}")
    study = Study(asker, entry, ablation.accused, result, deadline=deadline)
    is_other = is_other_compiler(entry.subject, ablation.hello) and ablation.accused != EAGER
    if result.verdict.is_lost and not is_other:
        return _find_lost_cause(study, ablation)
    if result.verdict is Verdict.EAGER_SUSPECT:
        return _blame_operation(replace(study, subject=EAGER), operation_of(result))
    if is_other:
        cause = find_foreign_cause(study)
        return replace(cause, mechanism=Mechanism(MechanismKind.EARLIER_CASES)) if entry.case.before else cause
    cause = (_find_kernel_cause if is_attention(entry.subject) else _find_compiler_cause)(study, ablation)
    if entry.case.before:
        return replace(cause, mechanism=Mechanism(MechanismKind.EARLIER_CASES))
    if is_attention(entry.subject) or cause.is_attention_pattern or cause.stage is Stage.OPERATION:
        return cause
    study = replace(study, subject=subject_of(ablation.cheapest, entry))
    return find_need(study, cause, lambda failing: attribute(failing, asker, deadline=deadline))


def _find_lost_cause(study: Study, ablation: Ablation) -> RootCause:
    """Blames the running operation only in stages that generate no code. Generated code may damage memory that an
    operation reads later.
    """
    result, is_kernel = study.result, is_attention(study.subject)
    failure, kind, value = result.failure, MechanismKind(result.verdict), ""
    key = (failure and failure.key()) or FailureKey()
    stage = ablation.accused if is_kernel or ablation.accused == EAGER else _find_stage(ablation)[1].experiment
    running = _find_running(replace(study, subject=subject_of(stage, study.entry)))
    told = details(error=getattr(failure, "fault", ""), lost=key.lost)
    evidence = (Tried("noted", running, Outcome.FAILS_ALIKE),) if running else ()
    if running and (is_kernel or EXPERIMENTS[stage].stage != Stage.CODEGEN):
        who = find_backend(running) or EAGER
        return RootCause(who, Stage.OPERATION, running, Mechanism(kind, told), evidence)
    if is_kernel:
        who, at, (part, value) = ablation.accused, Stage.KERNEL, _find_faulty_pass(study.case, result)
    else:
        who, at, part = EXPERIMENTS[stage].who, Stage(EXPERIMENTS[stage].stage), running
    told = told if running else details(error=key.text, lost=key.lost, value=value)
    return RootCause(who, at, part, Mechanism(kind, told), evidence)


def _find_running(study: Study) -> str:
    """The operation that was running when the process or the device was lost; "" if none was, or it is not known."""
    is_of_user = is_attention(study.subject) and not get_spec(study.subject).sdpa
    if is_of_user or study.result.verdict not in (Verdict.WORKER_DIED, Verdict.DEVICE_ERROR):
        return ""
    again = study.ask(study.case, study.subject, Trial("noted"))
    named = (one.operation for one in again.observations if isinstance(one, Running))
    return next(named, "") if compare_outcome(again, study.result) is Outcome.FAILS_ALIKE else ""


def _find_stage(ablation: Ablation) -> tuple[list[Tried], Tried]:
    """The last stage that passes, if any, and the first stage that fails."""
    passed: list[Tried] = []
    for stage in map(ablation.compare, _STAGES):
        # Blame Dynamo only if aot_eager fails too, and never for torch.export, which does not use it.
        is_excused = stage.experiment == DYNAMO and (EXPORTED[0] in ablation.stages or not ablation.fails(AOT_EAGER))
        if stage.flips and not is_excused:
            return passed, stage
        passed = [stage] if stage.outcome is Outcome.PASSES else passed
    return passed, ablation.compare(ablation.accused)


def _find_compiler_cause(study: Study, ablation: Ablation) -> RootCause:
    passed, stage = _find_stage(ablation)
    name, is_value = stage.experiment, study.result.verdict.has_wrong_numbers
    study = replace(study, subject=subject_of(name, study.entry))
    if name == PASSES:
        return find_rewrite_cause(replace(study, result=ablation.stages[PASSES]), *passed, stage)
    if name == DYNAMO and is_value and any(op.kind == "sdpa" for op in study.case.ops):
        # Dynamo does not change numbers. A fused call whose result depends on memory was right in eager by luck.
        call = _blame_operation(study)
        if any(one.flips for one in call.evidence):
            return call
    flip, failing = study.find_first_flip(NARROWER[name])
    if flip is not None and flip.experiment in (SYMBOLIC, NO_PATTERNS):
        if flip.experiment == SYMBOLIC:
            study = replace(study, subject=SYMBOLIC, result=study.ask(study.case, SYMBOLIC))
        return find_rewrite_cause(study, *passed, flip)
    evidence = (*passed, stage, *([flip] if flip else failing))
    if name in (AOT_EAGER, DECOMPOSED) and (other := study.try_out(OTHER_WRITE)).flips:
        flip, evidence = other, (*evidence, other)
    row, argument = (flip or stage).row, (flip or stage).argument
    mechanism = mechanism_of(study.result, MechanismKind.OTHER_VALUES if is_value and row.who != INDUCTOR else None)
    return RootCause(row.who, Stage(row.stage), row.part or argument, mechanism, evidence)


def find_rewrite_cause(study: Study, *evidence: Tried) -> RootCause:
    """The operation or rewrite that is proven wrong, else the first pass with which the case fails."""
    result, is_value = study.result, study.result.verdict.has_wrong_numbers
    of_strides = {rewrite.pattern for rewrite in result.wrong_rewrites if rewrite.strides and is_value}
    if wrong := tuple(rewrite for rewrite in result.wrong_rewrites if rewrite.pattern not in of_strides):
        return _blame_rewrite(study, wrong, evidence)
    step = study.try_out("pass")
    evidence = (*evidence, *([step] if step.flips or step.outcome is Outcome.NOT_TRIED else []))
    if not find_attention_pattern(step.argument):
        silent, cut = _find_silent_start(study, step.argument) if step.flips else (None, ())
        mechanism = mechanism_of(silent or result)
        return RootCause(INDUCTOR, Stage.GRAPH_PASSES, step.argument, mechanism, (*evidence, *cut))
    part, right = _part_of(step.argument), {*map(_part_of, (*result.right_rewrites, *of_strides))}
    is_right = is_value and {f"_{name}" for name in attention_patterns(result.applied_rewrites)} <= right
    if is_right and any(op.kind == "as_strided" for op in study.case.ops):
        # The values of the replacement are right, so the program reads them in another order.
        evidence = (*evidence, Tried("exact", part, Outcome.PASSES))
        return RootCause(INDUCTOR, Stage.JOINT_PASSES, part, Mechanism(MechanismKind.STRIDES), evidence)
    if is_right:
        # Results without this rewrite have no fused call, so they show nothing.
        here = replace(study, rewrite=part.removeprefix("_"))
        return _blame_operation(here, "", *evidence, Tried("exact", part, Outcome.PASSES))
    mechanism = mechanism_of(result, MechanismKind.OTHER_RESULT if is_value else None)
    return RootCause(INDUCTOR, Stage.JOINT_PASSES, part, mechanism, evidence)


def _find_silent_start(study: Study, step: str) -> tuple[SubjectResult | None, tuple[Tried, ...]]:
    """The failure of the program cut after an operation, if the pass makes it wrong without an error, and the evidence.
    An operation that reads a wrong value may raise any error.
    """
    if study.result.verdict.is_silent:
        return None, ()
    for op in study.case.ops:
        if study.is_time_up:
            break
        shorter = prune_if_valid(replace(study.case, returns=(op.name,)))
        result = None if shorter is None else study.ask(shorter, study.subject)
        if shorter is None or result is None or not result.verdict.is_silent:
            continue
        # Results have the memory and strides of eager's. Values within a program need not.
        if mechanism_of(result).kind not in (MechanismKind.MEMORY, MechanismKind.STRIDES):
            here = replace(study, entry=replace(study.entry, case=shorter), result=result)
            if here.try_out("pass", step).flips:
                return result, (Tried("shorter", op.name, Outcome.FAILS_OTHERWISE),)
    return None, ()


def _blame_rewrite(study: Study, wrong: tuple[WrongRewrite, ...], evidence: tuple[Tried, ...]) -> RootCause:
    """The first of several mistakes that rewrites show."""
    first, part = wrong[0], _part_of(wrong[0].pattern)
    rows = (("eager_replacement" if one.faulty else "exact", one.pattern) for one in wrong)
    evidence = (*evidence, *(Tried(row, pattern, Outcome.FAILS_ALIKE) for row, pattern in rows))
    if first.faulty:
        verdict = study.result.verdict if isinstance(first.faulty, FaultyOperation) else Verdict.RUNTIME_ERROR
        result = replace(study.result, verdict=verdict, failure=first.faulty)
        here = replace(study, rewrite=part.removeprefix("_"), result=result)
        return replace(_blame_operation(here, first.operation, *evidence), rewrites=wrong)
    kinds = {
        MechanismKind.STRIDES: first.strides,
        MechanismKind.CONSTANTS_IGNORED: first.constants,
        MechanismKind.EMPTY_ROWS: first.rows,
        MechanismKind.OPERANDS: first.right,
    }
    kind = next((kind for kind, applies in kinds.items() if applies), MechanismKind.OTHER_RESULT)
    told = details(operands=sorted(first.right)) if kind is MechanismKind.OPERANDS else ()
    return RootCause(INDUCTOR, Stage.JOINT_PASSES, part, Mechanism(kind, told), evidence, wrong)


def _part_of(pattern: str) -> str:
    number = find_attention_pattern(pattern)
    return f"_{number}" if number else pattern


def _blame_operation(study: Study, operation: str = "", *evidence: Tried) -> RootCause:
    """An operation of eager, by default the fused call of attention, with the edit of the case that makes it right."""
    device = study.asker.hello.device
    # On a CPU PyTorch chooses flash.
    fused = _operation_of("sdpa_flash", device) if device == "cpu" else SDPA
    who = find_backend(operation or fused) or EAGER
    mechanism, tried = _find_condition(study)
    return RootCause(who, Stage.OPERATION, operation or fused, mechanism, (*evidence, *tried))


def _find_condition(study: Study) -> tuple[Mechanism, tuple[Tried, ...]]:
    """The edit of the case that makes the operation right, as a mechanism, and the evidence."""
    case, failure = study.case, study.result.failure
    if isinstance(failure, EmptyRowsNotZero):
        return Mechanism(MechanismKind.EMPTY_ROWS), ()
    for one in (one for rewrite in study.result.wrong_rewrites for one in rewrite.outcomes):
        if one.experiment == EXPANDED and one.flips:
            return Mechanism(MechanismKind.BROADCAST, details(operand=one.argument)), (one,)
    is_not_finite = study.result.verdict is Verdict.NONFINITE
    is_not_finite |= isinstance(failure, FaultyOperation) and failure.is_not_finite
    flip, tried = study.find_first_flip(NARROWER[EAGER])
    if flip is None:
        how = MechanismKind.NOT_FINITE if is_not_finite else MechanismKind.WRONG
        return mechanism_of(study.result, how), tried
    kind = MechanismKind(flip.row.mechanism)
    # An exception is about strides or alignment, even if operands overlap.
    has_raised = study.result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
    overlaps = any(op.kind in OVERLAPPING for op in case.ops) or any(i.layout == "expanded" for i in case.inputs)
    if kind is MechanismKind.NOT_CONTIGUOUS and not has_raised and overlaps:
        kind = MechanismKind.OVERLAPPING_ROWS
    if kind is not MechanismKind.WRONG_IN:
        return Mechanism(kind), (flip,)
    kind = MechanismKind.NOT_FINITE_IN if is_not_finite else kind
    return Mechanism(kind, details(dtype=list_low_precision(case)[:1])), (flip,)


def _operation_of(subject: str, device: str) -> str:
    names = get_spec(subject).operations
    return next((f"aten.{name}" for name in names if name.endswith("_for_cpu") == (device == "cpu")), subject)


def _find_kernel_cause(study: Study, ablation: Ablation) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    if study.subject.startswith(_SDPA):
        operation = _operation_of(study.subject, study.asker.hello.device)
        return RootCause(study.subject, Stage.OPERATION, operation, *_find_condition(study))
    needed, tried = _find_needed_options(study)
    controls = [one for one in map(ablation.compare, (MATH, EAGER)) if one.outcome is Outcome.PASSES]
    part, value = _find_faulty_pass(study.case, study.result)
    verdict, failure = study.result.verdict, study.result.failure
    kind = _MECHANISMS.get(verdict) or MechanismKind(verdict)
    kind = MechanismKind.DROPOUT if isinstance(failure, DropoutMask) else kind
    mechanism = Mechanism(kind, details(value=value, options=needed))
    return RootCause(study.subject, Stage.KERNEL, part, mechanism, (*controls, *tried))


def _find_faulty_pass(case: Case, result: SubjectResult) -> tuple[str, str]:
    """The computation that is wrong, such as `attention_backward`, and the name of a wrong gradient, or ""."""
    value = result.value
    if result.verdict is not Verdict.WRONG_GRADIENT and not (value and value.is_gradient):
        is_either = case.training and result.verdict is Verdict.OUT_OF_BOUNDS
        return "attention" if is_either else "attention_forward", ""
    return "attention_backward", name_gradient(case, value) if value else ""


def _find_needed_options(study: Study) -> tuple[list[str], list[Tried]]:
    """The options whose removal makes the function right, and all experiments, passing experiments first."""
    ids = {name: name for name in (*COMPARABLE, "group")}
    if any(contract.causal == "bottom_right" for contract in study.case.contracts):
        ids["causal"] = "causal_bottom_right"
    if "scale:negative" in contract_features(study.case):
        ids["scale"] = "negative_scale"
    tried = {one.argument: one for rewrite in study.result.wrong_rewrites for one in reversed(rewrite.outcomes)}
    shown = [replace(tried[name], argument=option) for name, option in ids.items() if name in tried]
    needed = [one.argument for one in shown if one.flips]
    return needed, sorted(shown, key=lambda one: not one.flips)
