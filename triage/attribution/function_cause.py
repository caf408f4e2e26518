"""The cause of a wrong operation of eager, and of a wrong attention function."""

from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, Stage, details
from fuzz.bug_identity import contract_features
from fuzz.error_location import name_gradient
from fuzz.experiments import Outcome, Tried
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, EmptyRowsNotZero, FaultyOperation
from fuzz.protocol.rewrites import EXPANDED
from generators.program.attention_options import COMPARABLE
from generators.program.case import Case
from triage.attribution.ablation import EAGER, MATH, Ablation
from triage.attribution.case_edits import EDITS, OVERLAPPING, list_low_precision
from triage.attribution.root_cause import RootCause
from triage.attribution.study import Study, mechanism_of

BACKENDS = {
    "_scaled_dot_product_flash_attention_for_cpu": "sdpa_flash",
    "_scaled_dot_product_flash_attention": "sdpa_flash",
    "_scaled_dot_product_efficient_attention": "sdpa_efficient",
    "_scaled_dot_product_cudnn_attention": "sdpa_cudnn",
}
"""The subject that asks for the backend whose operation it is."""
_SDPA = "sdpa_"

_MECHANISMS = {
    Verdict.OUT_OF_BOUNDS: MechanismKind.WRITES,
    Verdict.NONDETERMINISTIC: MechanismKind.RESULTS_DIFFER,
    Verdict.METADATA: MechanismKind.FORM,
    Verdict.NONFINITE: MechanismKind.NOT_FINITE,
    Verdict.WRONG_RESULT: MechanismKind.WRONG_VALUES,
    Verdict.WRONG_GRADIENT: MechanismKind.WRONG_VALUES,
}


def find_operation_cause(study: Study) -> RootCause:
    """The cause if eager is wrong: its first wrong operation, and the edit that makes the operation right."""
    failure = study.result.failure
    operation = failure.operation if isinstance(failure, FaultyOperation) else ""
    who = BACKENDS.get(operation.removeprefix("aten."), "eager")
    return RootCause(who, Stage.OPERATION, operation, *find_condition(study))


def blame_fused_call(device: str, mechanism: Mechanism, evidence: tuple[Tried, ...]) -> RootCause:
    """The cause if the fused call of a replacement is wrong: the backend that PyTorch chooses, flash on the CPU."""
    if device == "cpu":
        return RootCause("sdpa_flash", Stage.OPERATION, _operation_of("sdpa_flash", device), mechanism, evidence)
    return RootCause("eager", Stage.OPERATION, "aten.scaled_dot_product_attention", mechanism, evidence)


def find_condition(study: Study) -> tuple[Mechanism, tuple[Tried, ...]]:
    """The edit of the case without which the operation is right, as a mechanism, and the evidence."""
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
    # An error is about strides or addresses, whatever overlaps.
    has_raised = study.result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
    if kind is MechanismKind.NOT_CONTIGUOUS and not has_raised and any(op.kind in OVERLAPPING for op in case.ops):
        kind = MechanismKind.OVERLAPPING_ROWS
    if kind is not MechanismKind.WRONG_IN:
        return Mechanism(kind), (flip,)
    kind = MechanismKind.NOT_FINITE_IN if is_not_finite else kind
    return Mechanism(kind, details(dtype=list_low_precision(case)[:1])), (flip,)


def _operation_of(subject: str, device: str) -> str:
    names = (name for name, backend in BACKENDS.items() if backend == subject)
    return next((f"aten.{name}" for name in names if name.endswith("_for_cpu") == (device == "cpu")), subject)


def find_kernel_cause(study: Study, ablation: Ablation) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    if study.subject.startswith(_SDPA):
        operation = _operation_of(study.subject, study.evaluator.hello.device)
        return RootCause(study.subject, Stage.OPERATION, operation, *(_find_broadcast(study) or find_condition(study)))
    needed, features = _find_features(study)
    controls = [one for one in map(ablation.compare, (MATH, EAGER)) if one.outcome is Outcome.PASSES]
    part, value = find_faulty_pass(study.case, study.result)
    verdict, failure = study.result.verdict, study.result.failure
    kind = _MECHANISMS.get(verdict) or MechanismKind(verdict)
    kind = MechanismKind.DROPOUT if isinstance(failure, DropoutMask) else kind
    mechanism = Mechanism(kind, details(value=value, options=needed))
    return RootCause(study.subject, Stage.KERNEL, part, mechanism, (*controls, *features))


def _find_broadcast(study: Study) -> tuple[Mechanism, tuple[Tried, ...]] | None:
    for one in (one for rewrite in study.result.wrong_rewrites for one in rewrite.outcomes):
        if one.experiment == EXPANDED and one.flips:
            return Mechanism(MechanismKind.BROADCAST, details(operand=one.argument)), (one,)
    return None


def find_faulty_pass(case: Case, result: SubjectResult) -> tuple[str, str]:
    """The computation that is wrong, such as `attention_backward`, and the gradient, if one is."""
    value = result.value
    if result.verdict is not Verdict.WRONG_GRADIENT and not (value and value.is_gradient):
        is_either = case.training and result.verdict is Verdict.OUT_OF_BOUNDS
        return "attention" if is_either else "attention_forward", ""
    return "attention_backward", name_gradient(case, value) if value else ""


def _find_features(study: Study) -> tuple[list[str], list[Tried]]:
    """The ids of options without which the function is right, and the experiments, those that pass first."""
    ids = {name: name for name in (*COMPARABLE, "group")}
    if any(contract.causal == "bottom_right" for contract in study.case.contracts):
        ids["causal"] = "causal_bottom_right"
    if "scale:negative" in contract_features(study.case):
        ids["scale"] = "negative_scale"
    tried = {one.argument: one for rewrite in study.result.wrong_rewrites for one in reversed(rewrite.outcomes)}
    shown = [replace(tried[name], argument=option) for name, option in ids.items() if name in tried]
    needed = [one.argument for one in shown if one.flips]
    return needed, sorted(shown, key=lambda one: not one.flips)
