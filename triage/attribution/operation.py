"""Which operation of eager, or which backend of F.scaled_dot_product_attention, is wrong, and what it takes."""

from fuzz.protocol import Verdict
from fuzz.protocol.failures import FaultyOperation, RelationBroken
from generators.program.case import Case
from generators.program.dtypes import LOW_PRECISION
from generators.program.type_check import types_of
from triage.attribution.case_edits import in_dtype, with_contiguous_operands, with_positive_scale, without_causality
from triage.attribution.experiments import Hypothesis, Study, passes
from triage.attribution.root_cause import (
    OPERATION,
    CaseChange,
    Evidence,
    Experiment,
    Mechanism,
    MechanismKind,
    RootCause,
)

BACKENDS = {
    "_scaled_dot_product_flash_attention_for_cpu": "sdpa_flash",
    "_scaled_dot_product_flash_attention": "sdpa_flash",
    "_scaled_dot_product_efficient_attention": "sdpa_efficient",
    "_scaled_dot_product_cudnn_attention": "sdpa_cudnn",
}
"""The subject that asks for the backend whose operation it is."""


def find_operation_cause(study: Study) -> RootCause:
    """Who is at fault where eager is wrong in one of its own operations."""
    failure = study.result.failure
    operation = failure.operation if isinstance(failure, FaultyOperation) else ""
    who = BACKENDS.get(operation.removeprefix("aten."), "eager")
    return RootCause(who, OPERATION, operation, *find_condition(study))


def find_backend_cause(study: Study) -> RootCause:
    """Who is at fault where a backend of F.scaled_dot_product_attention is: its operation on this device."""
    operation = _operation_of(study.subject, study.evaluator.hello.device)
    return RootCause(study.subject, OPERATION, operation, *find_condition(study))


def fused_call_cause(device: str, mechanism: Mechanism, evidence: tuple[Evidence, ...]) -> RootCause:
    """Who is at fault where the fused call of a replacement is: the backend that PyTorch chooses, flash on the CPU."""
    if device == "cpu":
        return RootCause("sdpa_flash", OPERATION, _operation_of("sdpa_flash", device), mechanism, evidence)
    return RootCause("eager", OPERATION, "aten.scaled_dot_product_attention", mechanism, evidence)


def find_condition(study: Study) -> tuple[Mechanism, tuple[Evidence, ...]]:
    """What it takes for the operation to be wrong, and the evidence."""
    case, failure = study.case, study.result.failure
    negated = isinstance(failure, RelationBroken) and failure.relation == "-q and -scale"
    if negated and any(contract.causal for contract in case.contracts):
        return Mechanism(MechanismKind.NEGATIVE_CAUSAL), ()
    how, how_in = MechanismKind.WRONG, MechanismKind.WRONG_IN
    if study.result.verdict is Verdict.NONFINITE or (isinstance(failure, FaultyOperation) and failure.is_not_finite):
        how, how_in = MechanismKind.NOT_FINITE, MechanismKind.NOT_FINITE_IN
    low = sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))
    tried = (
        (Mechanism(MechanismKind.NEGATIVE_SCALE), CaseChange.POSITIVE_SCALE, with_positive_scale(case)),
        (layout_mechanism(case), CaseChange.CONTIGUOUS, with_contiguous_operands(case)),
        (Mechanism(how_in, low[0] if low else ""), CaseChange.FLOAT32, in_dtype(case, "float32") if low else None),
    )
    hypotheses = [Hypothesis(name, change=change, case=other) for name, change, other in tried if other is not None]
    found = study.find(hypotheses)
    if found is None:
        shown = (Experiment(passes(study.judge(case=one.case)), change=one.change) for one in hypotheses)
        return Mechanism(how), tuple(one for one in shown if one.passes is False)
    mechanism, experiment = found
    if mechanism.name is MechanismKind.NEGATIVE_SCALE:
        for other in without_causality(case):
            causal = study.try_case(other, CaseChange.NOT_CAUSAL)
            if causal.passes:
                return Mechanism(MechanismKind.NEGATIVE_CAUSAL), (experiment, causal)
    return mechanism, (experiment,)


def layout_mechanism(case: Case) -> Mechanism:
    """How operands lie in memory that are wrong unless they are copied."""
    overlap = any(op.kind in ("unfold", "expand", "expand_as") for op in case.ops)
    return Mechanism(MechanismKind.OVERLAPPING_ROWS if overlap else MechanismKind.NOT_CONTIGUOUS)


def _operation_of(subject: str, device: str) -> str:
    names = (name for name, backend in BACKENDS.items() if backend == subject)
    return next((f"aten.{name}" for name in names if name.endswith("_for_cpu") == (device == "cpu")), subject)
