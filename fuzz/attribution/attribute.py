"""From a case to its root cause. The kind of failure decides which experiments find it.

- Lost process: the first stage of the ablation that fails. No experiment follows, because each costs a process.
- Eager: the operation that eager computes wrongly, and the edit of the case that makes it right.
- Attention function: the options whose removal makes a call right.
- Compiler, the first of:
    - the first stage before Inductor that fails, with its decomposition or recomputation
    - a rewrite that is proven wrong, else the graph pass found by bisection
    - the part of code generation, else the lowering found by bisection
"""

import re
from dataclasses import replace
from itertools import pairwise

from corpus.causes import Mechanism, MechanismKind, Part, Stage, details
from corpus.entry import Entry
from fuzz.attribution.ablation import (
    AOT_EAGER,
    DECOMPOSED,
    DYNAMIC,
    DYNAMO,
    EAGER,
    INDUCTOR,
    MATH,
    NO_PATTERNS,
    PASSES,
    Ablation,
    find_cheapest,
    is_attention,
    run_ablation,
)
from fuzz.attribution.root_cause import RootCause, operands_mechanism
from fuzz.attribution.study import EDITS, OVERLAPPING, Study, list_low_precision, mechanism_of, subject_of
from fuzz.bug_identity import LOST_PROCESS, SILENT, WRONG_NUMBERS, attention_patterns, contract_features, operation_of
from fuzz.error_location import name_gradient
from fuzz.evaluator import Evaluator
from fuzz.experiments import EXPERIMENTS, OtherSubject, Outcome, Tried
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, EmptyRowsNotZero, FailureKey, FaultyOperation
from fuzz.protocol.rewrites import EXPANDED, WrongRewrite
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.attention_options import COMPARABLE
from generators.program.case import Case, LaterCall
from generators.program.ops import OPS
from generators.program.state import at_call, is_written, list_differences, list_targets

_SYMBOLIC = "passes_dynamic"
_BEFORE_INDUCTOR = (DYNAMO, AOT_EAGER, DECOMPOSED, "export")
_PLAINER_CODE = [
    row.id for row in EXPERIMENTS.values() if row.stage == Stage.CODEGEN and not isinstance(row.change, OtherSubject)
]
_NUMBER = re.compile(r"sfdp_pattern_(\d+)")
_BACKENDS = {
    "_scaled_dot_product_flash_attention_for_cpu": "sdpa_flash",
    "_scaled_dot_product_flash_attention": "sdpa_flash",
    "_scaled_dot_product_efficient_attention": "sdpa_efficient",
    "_scaled_dot_product_cudnn_attention": "sdpa_cudnn",
}
"""Operations of scaled_dot_product_attention, with the subject that selects their backend."""
_SDPA = "sdpa_"

_MECHANISMS = {
    Verdict.OUT_OF_BOUNDS: MechanismKind.WRITES,
    Verdict.NONDETERMINISTIC: MechanismKind.RESULTS_DIFFER,
    Verdict.METADATA: MechanismKind.FORM,
    Verdict.NONFINITE: MechanismKind.NOT_FINITE,
    Verdict.WRONG_RESULT: MechanismKind.WRONG_VALUES,
    Verdict.WRONG_GRADIENT: MechanismKind.WRONG_VALUES,
}


def attribute(entry: Entry, evaluator: Evaluator, ablation: Ablation | None = None) -> RootCause:
    """The root cause of a finding; `ablation`: an earlier ablation of it.

    Raises UserError if the case shows no bug, or can't be judged.
    """
    ablation = ablation or run_ablation(entry, evaluator, full=False)
    result = ablation.result
    if not result.verdict.is_finding:
        raise UserError(f"case {entry.case.id} shows no bug under torch {ablation.hello.torch}: {result.verdict}")
    study = Study(evaluator, entry, ablation.accused, result)
    if result.verdict in LOST_PROCESS:
        return _find_lost_cause(study, ablation)
    if result.verdict is Verdict.EAGER_SUSPECT:
        operation = operation_of(result)
        who = _BACKENDS.get(operation.removeprefix("aten."), EAGER)
        return RootCause(who, Stage.OPERATION, operation, *_find_condition(replace(study, subject=EAGER)))
    cause = (_find_kernel_cause if is_attention(entry.subject) else _find_compiler_cause)(study, ablation)
    if entry.case.before:
        return replace(cause, mechanism=Mechanism(MechanismKind.EARLIER_CASES))
    if is_attention(entry.subject) or cause.is_attention_pattern or result.verdict not in SILENT:
        return cause
    return _find_state(replace(study, subject=find_cheapest(ablation, entry)), cause)


def _blame(tried: Tried, mechanism: Mechanism, *evidence: Tried) -> RootCause:
    row = tried.row
    return RootCause(row.who, Stage(row.stage), row.part or tried.argument, mechanism, (*evidence, tried))


def _find_lost_cause(study: Study, ablation: Ablation) -> RootCause:
    result = study.result
    key = (result.failure and result.failure.key()) or FailureKey()
    stages = (EAGER,) if ablation.accused == EAGER else (*_BEFORE_INDUCTOR, PASSES)
    row = EXPERIMENTS[next((stage for stage in stages if ablation.fails(stage)), INDUCTOR)]
    who, stage, part, value = row.who, Stage(row.stage), "", ""
    if is_attention(study.entry.subject):
        who, stage, (part, value) = ablation.accused, Stage.KERNEL, _find_faulty_pass(study.case, result)
    told = details(error=key.text, lost=key.lost, value=value)
    return RootCause(who, stage, part, Mechanism(MechanismKind(result.verdict), told))


def _find_compiler_cause(study: Study, ablation: Ablation) -> RootCause:
    for before, stage in pairwise((EAGER, *_BEFORE_INDUCTOR)):
        # Dynamo is not part of torch.export. A mistake of Dynamo shows in all later stages, so these must fail too.
        is_excused = stage == DYNAMO and ("export" in ablation.stages or not ablation.fails(AOT_EAGER))
        if ablation.fails(stage) and not is_excused:
            earlier = [ablation.compare(before)] if before != EAGER else []
            return _find_cause_before_inductor(study, ablation, ablation.compare(stage), *earlier)
    study, evaluator = replace(study, subject=find_cheapest(ablation, study.entry)), study.evaluator
    shown = [ablation.compare(DECOMPOSED), ablation.compare(PASSES)]
    find = find_rewrite_cause
    if ablation.fails(PASSES):
        study = replace(study, result=ablation.stages[PASSES])
    elif study.subject == DYNAMIC and (symbolic := study.try_out(_SYMBOLIC)).flips:
        shown.append(symbolic)
        study = replace(study, subject=_SYMBOLIC, result=evaluator.judge(study.case, _SYMBOLIC))
    elif (without_patterns := study.try_out(NO_PATTERNS)).flips:
        shown.append(without_patterns)
    else:
        static = ablation.compare(INDUCTOR)
        shown += [static] if ablation.accused == DYNAMIC and static.outcome is Outcome.PASSES else []
        find = _find_codegen_cause
    cause = find(study)
    return replace(cause, evidence=(*shown, *cause.evidence))


def _find_cause_before_inductor(study: Study, ablation: Ablation, stage: Tried, *before: Tried) -> RootCause:
    """The decomposition or the recomputation of a stage that fails, or the stage as a whole."""
    is_value = study.result.verdict in WRONG_NUMBERS
    mechanism = mechanism_of(study.result, MechanismKind.OTHER_VALUES if is_value else None)
    here = replace(study, subject=subject_of(stage.experiment, study.entry))
    deeper = None
    if stage.experiment == DYNAMO and is_value and any(op.kind == "sdpa" for op in study.case.ops):
        # Dynamo does not change numbers. A fused call whose result depends on memory was right in eager by luck.
        condition, tried = _find_condition(here)
        if any(one.flips for one in tried):
            return _blame_fused_call(study.evaluator.hello.device, condition, tried)
    # Bisect only a stage that fails alike: another failure has another first decomposition.
    elif stage.experiment == DECOMPOSED and stage.outcome is Outcome.FAILS_ALIKE:
        deeper = replace(here, result=ablation.stages[DECOMPOSED]).bisect("decomposition")
    elif stage.experiment == AOT_EAGER and get_spec(study.entry.subject).recomputes:
        deeper = here.try_out("memory_kept")
    if deeper is not None and deeper.flips:
        return _blame(deeper, mechanism, *before, stage)
    return _blame(stage, mechanism, *before)


def find_rewrite_cause(study: Study) -> RootCause:
    """The rewrite that is proven wrong, else the first pass with which the case fails."""
    result = study.result
    of_strides = {
        rewrite.pattern for rewrite in result.wrong_rewrites if rewrite.strides and result.verdict in WRONG_NUMBERS
    }
    if wrong := tuple(rewrite for rewrite in result.wrong_rewrites if rewrite.pattern not in of_strides):
        return _blame_proven(wrong)
    step = study.bisect("pass")
    if not step.flips:
        return RootCause("inductor", Stage.GRAPH_PASSES, "", mechanism_of(result))
    if not _NUMBER.search(step.argument):
        return _blame(step, mechanism_of(result))
    part, right = _part_of(step.argument), {*map(_part_of, (*result.right_rewrites, *of_strides))}
    if (
        result.verdict in WRONG_NUMBERS
        and {f"_{name}" for name in attention_patterns(result.applied_rewrites)} <= right
    ):
        # Results without this rewrite have no fused call, so they show nothing.
        mechanism, tried = _find_condition(replace(study, rewrite=part.removeprefix("_")))
        exact = Tried("exact", part, Outcome.PASSES)
        return _blame_fused_call(study.evaluator.hello.device, mechanism, (step, exact, *tried))
    mechanism = mechanism_of(result, MechanismKind.OTHER_RESULT if result.verdict in WRONG_NUMBERS else None)
    return RootCause("inductor", Stage.JOINT_PASSES, part, mechanism, (step,))


def _blame_proven(wrong: tuple[WrongRewrite, ...]) -> RootCause:
    """The first of several rewrites that are proven wrong."""
    first = wrong[0]
    mechanism = Mechanism(MechanismKind.OTHER_RESULT)
    if first.strides:
        mechanism = Mechanism(MechanismKind.STRIDES)
    elif first.constants:
        mechanism = Mechanism(MechanismKind.CONSTANTS_IGNORED)
    elif first.rows:
        mechanism = Mechanism(MechanismKind.EMPTY_ROWS)
    elif first.right:
        mechanism = operands_mechanism(first)
    evidence = tuple(Tried("exact", rewrite.pattern, Outcome.FAILS_ALIKE) for rewrite in wrong)
    return RootCause("inductor", Stage.JOINT_PASSES, _part_of(first.pattern), mechanism, evidence, wrong)


def _part_of(pattern: str) -> str:
    """A pattern by its number, without its forms for modes and dtypes."""
    found = _NUMBER.search(pattern)
    return f"_sfdp_pattern_{found[1]}" if found else pattern


def _find_codegen_cause(study: Study) -> RootCause:
    mechanism = mechanism_of(study.result, MechanismKind(study.result.verdict))
    if get_spec(study.subject).is_exported:  # the code that torch.compile generates is right
        return RootCause("inductor", Stage.CODEGEN, Part.AOT_INDUCTOR_PACKAGE, mechanism)
    flip, tried = study.find_first_flip(_PLAINER_CODE)
    if flip is not None:
        return _blame(flip, mechanism)
    lowering = study.bisect("lowering")
    if lowering.flips:
        return _blame(lowering, mechanism)
    return RootCause("inductor", Stage.CODEGEN, "", mechanism, tried)


def _find_state(study: Study, cause: RootCause) -> RootCause:
    """`cause` with the later call or write that the failure needs. If a call fails alone, the cause of that call."""
    case, mechanism, write = study.case, cause.mechanism, {}
    if is_written(case) and study.result.verdict in WRONG_NUMBERS:
        write = {"into": list_targets(case), "by": sorted({op.kind for op in case.ops if OPS[op.kind].writes})}
        mechanism = Mechanism(MechanismKind.WRITTEN, details(**write))
    alone = [at_call(case, call) for call in ((LaterCall(), *case.calls) if case.calls else ())]
    tried = [study.try_out("calls_apart", case=one) for one in alone]
    failing = next((one for one, apart in zip(alone, tried, strict=True) if apart.outcome.fails), None)
    if failing is not None:
        return attribute(replace(study.entry, case=failing), study.evaluator)
    if not (tried and all(apart.flips for apart in tried)):
        return replace(cause, mechanism=mechanism)
    kind = MechanismKind.LATER_CALL_AND_WRITE if write else MechanismKind.LATER_CALL
    mechanism = Mechanism(kind, details(changed=list_differences(case) or "nothing", **write))
    return replace(cause, mechanism=mechanism, evidence=(*cause.evidence, tried[0]))


def _blame_fused_call(device: str, mechanism: Mechanism, evidence: tuple[Tried, ...]) -> RootCause:
    if device == "cpu":  # there PyTorch chooses flash
        return RootCause("sdpa_flash", Stage.OPERATION, _operation_of("sdpa_flash", device), mechanism, evidence)
    return RootCause("eager", Stage.OPERATION, "aten.scaled_dot_product_attention", mechanism, evidence)


def _find_condition(study: Study) -> tuple[Mechanism, tuple[Tried, ...]]:
    """The edit of the case that makes the operation right, as a mechanism, and the evidence."""
    case, failure = study.case, study.result.failure
    if isinstance(failure, EmptyRowsNotZero):
        return Mechanism(MechanismKind.EMPTY_ROWS), ()
    is_not_finite = study.result.verdict is Verdict.NONFINITE
    is_not_finite |= isinstance(failure, FaultyOperation) and failure.is_not_finite
    flip, tried = study.find_first_flip(EDITS)
    if flip is None:
        how = MechanismKind.NOT_FINITE if is_not_finite else MechanismKind.WRONG
        return mechanism_of(study.result, how), tuple(one for one in tried if one.outcome.fails)
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
    names = (name for name, backend in _BACKENDS.items() if backend == subject)
    return next((f"aten.{name}" for name in names if name.endswith("_for_cpu") == (device == "cpu")), subject)


def _find_kernel_cause(study: Study, ablation: Ablation) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    if study.subject.startswith(_SDPA):
        operation = _operation_of(study.subject, study.evaluator.hello.device)
        return RootCause(study.subject, Stage.OPERATION, operation, *(_find_broadcast(study) or _find_condition(study)))
    needed, tried = _find_needed_options(study)
    controls = [one for one in map(ablation.compare, (MATH, EAGER)) if one.outcome is Outcome.PASSES]
    part, value = _find_faulty_pass(study.case, study.result)
    verdict, failure = study.result.verdict, study.result.failure
    kind = _MECHANISMS.get(verdict) or MechanismKind(verdict)
    kind = MechanismKind.DROPOUT if isinstance(failure, DropoutMask) else kind
    mechanism = Mechanism(kind, details(value=value, options=needed))
    return RootCause(study.subject, Stage.KERNEL, part, mechanism, (*controls, *tried))


def _find_broadcast(study: Study) -> tuple[Mechanism, tuple[Tried, ...]] | None:
    for one in (one for rewrite in study.result.wrong_rewrites for one in rewrite.outcomes):
        if one.experiment == EXPANDED and one.flips:
            return Mechanism(MechanismKind.BROADCAST, details(operand=one.argument)), (one,)
    return None


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
