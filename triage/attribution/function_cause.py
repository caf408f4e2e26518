"""Which operation of eager, or which part of an attention function, is at fault, and what it takes."""

from collections.abc import Callable
from dataclasses import replace

from corpus.causes import DETAIL_LABELS, Mechanism, MechanismKind, Stage, details
from fuzz.bug_identity import contract_features
from fuzz.error_location import name_gradient
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, EmptyRowsNotZero, FaultyOperation, is_gradient
from fuzz.protocol.rewrites import EXPANDED
from generators.program.attention_options import COMPARABLE
from generators.program.case import Attr, Case, Op
from generators.program.dtypes import FLOATS, LOW_PRECISION
from generators.program.edits import make_name, prune_if_valid
from generators.program.type_check import make_op, types_of
from triage.attribution.ablation import EAGER, MATH, Ablation
from triage.attribution.experiments import Study, mechanism_of
from triage.attribution.root_cause import CaseChange, Evidence, Experiment, RootCause

BACKENDS = {
    "_scaled_dot_product_flash_attention_for_cpu": "sdpa_flash",
    "_scaled_dot_product_flash_attention": "sdpa_flash",
    "_scaled_dot_product_efficient_attention": "sdpa_efficient",
    "_scaled_dot_product_cudnn_attention": "sdpa_cudnn",
}
"""The subject that asks for the backend whose operation it is."""
_SDPA = "sdpa_"

_OVERLAPPING = ("unfold", "expand", "expand_as")
"""Operations whose results may overlap in memory."""
_MECHANISMS = {
    Verdict.OUT_OF_BOUNDS: MechanismKind.WRITES,
    Verdict.NONDETERMINISTIC: MechanismKind.RESULTS_DIFFER,
    Verdict.METADATA: MechanismKind.FORM,
    Verdict.NONFINITE: MechanismKind.NOT_FINITE,
    Verdict.WRONG_RESULT: MechanismKind.WRONG_VALUES,
    Verdict.WRONG_GRADIENT: MechanismKind.WRONG_VALUES,
}


def find_operation_cause(study: Study) -> RootCause:
    """Who is at fault where eager is wrong in one of its own operations."""
    failure = study.result.failure
    operation = failure.operation if isinstance(failure, FaultyOperation) else ""
    who = BACKENDS.get(operation.removeprefix("aten."), "eager")
    return RootCause(who, Stage.OPERATION, operation, *find_condition(study))


def blame_fused_call(device: str, mechanism: Mechanism, evidence: tuple[Evidence, ...]) -> RootCause:
    """Who is at fault where the fused call of a replacement is: the backend that PyTorch chooses, flash on the CPU."""
    if device == "cpu":
        return RootCause("sdpa_flash", Stage.OPERATION, _operation_of("sdpa_flash", device), mechanism, evidence)
    return RootCause("eager", Stage.OPERATION, "aten.scaled_dot_product_attention", mechanism, evidence)


def find_condition(study: Study) -> tuple[Mechanism, tuple[Evidence, ...]]:
    """What it takes for the operation to be wrong, and the evidence."""
    case, failure = study.case, study.result.failure
    if isinstance(failure, EmptyRowsNotZero):
        return Mechanism(MechanismKind.EMPTY_ROWS), ()
    how, how_in = MechanismKind.WRONG, MechanismKind.WRONG_IN
    if study.result.verdict is Verdict.NONFINITE or (isinstance(failure, FaultyOperation) and failure.is_not_finite):
        how, how_in = MechanismKind.NOT_FINITE, MechanismKind.NOT_FINITE_IN
    low = sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))
    # An error is about strides or addresses, whatever overlaps.
    has_raised = study.result.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
    is_overlapping = not has_raised and any(op.kind in _OVERLAPPING for op in case.ops)
    layout = MechanismKind.OVERLAPPING_ROWS if is_overlapping else MechanismKind.NOT_CONTIGUOUS
    tried = (
        (Mechanism(MechanismKind.NEGATIVE_SCALE), CaseChange.POSITIVE_SCALE, _with_positive_scale(case)),
        (Mechanism(layout), CaseChange.CONTIGUOUS, _with_contiguous_operands(case)),
        (Mechanism(MechanismKind.TWO_DTYPES), CaseChange.ONE_DTYPE, _in_one_dtype(case, low[0]) if low else None),
        (Mechanism(how_in, details(dtype=low[:1])), CaseChange.FLOAT32, _in_float32(case) if low else None),
    )
    shown = [(name, study.try_case(other, change)) for name, change, other in tried if other is not None]
    right = next(((name, (one,)) for name, one in shown if one.passes), None)
    return right or (mechanism_of(study.result, how), tuple(one for _, one in shown if one.passes is False))


def _with_positive_scale(case: Case) -> Case | None:
    """Every scale is positive."""

    def change(name: str, value: Attr) -> Attr:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        positive = abs(value) or (1.0 if name == "scale" else value) if is_number else value  # type: ignore[arg-type]
        return positive if name in ("scale", "other") else value

    contracts = tuple(replace(contract, scale=abs(contract.scale) or 1.0) for contract in case.contracts)
    return _other_than(case, replace(_with_attributes(case, change), contracts=contracts))


def _with_contiguous_operands(case: Case) -> Case | None:
    """What contracts and fused calls read, and what overlaps in memory, is copied into contiguous memory first."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    # A copy between other operations would hide attention from the patterns that look for it.
    wanted |= {arg for op in case.ops if op.kind == "sdpa" for arg in op.args[:3]}
    wanted |= {op.name for op in case.ops if op.kind in _OVERLAPPING}
    ops: list[Op] = []
    for op in case.ops:
        name = make_name(case, f"{op.name[:24]}_strided", (op.name for op in ops)) if op.name in wanted else op.name
        ops.append(replace(op, name=name))
        if op.name in wanted:
            ops.append(make_op(op.name, "clone", (name,), {"memory_format": "contiguous"}))
    inputs = tuple(replace(item, layout="contiguous") for item in case.inputs)
    return _other_than(case, replace(case, ops=tuple(ops), inputs=inputs))


def _in_one_dtype(case: Case, dtype: str) -> Case | None:
    """All floating inputs have this dtype."""
    inputs = tuple(replace(item, dtype=dtype) if item.dtype in FLOATS else item for item in case.inputs)
    return _other_than(case, replace(case, inputs=inputs))


def _in_float32(case: Case) -> Case | None:
    """What is in half precision is in float32."""
    inputs = tuple(replace(i, dtype="float32") if i.dtype in LOW_PRECISION else i for i in case.inputs)
    changed = _with_attributes(case, lambda _, value: "float32" if value in LOW_PRECISION else value)
    return _other_than(case, replace(changed, inputs=inputs))


def _with_attributes(case: Case, change: Callable[[str, Attr], Attr]) -> Case:
    ops = (make_op(op.name, op.kind, op.args, {k: change(k, v) for k, v in op.attrs}) for op in case.ops)
    return replace(case, ops=tuple(ops))


def _other_than(case: Case, other: Case) -> Case | None:
    made = prune_if_valid(other)
    return None if made is None or made.canonical() == case.canonical() else made


def _operation_of(subject: str, device: str) -> str:
    names = (name for name, backend in BACKENDS.items() if backend == subject)
    return next((f"aten.{name}" for name in names if name.endswith("_for_cpu") == (device == "cpu")), subject)


def find_kernel_cause(study: Study, ablation: Ablation) -> RootCause:
    """The cause of a finding about the attention function that `ablation` accuses."""
    if study.subject.startswith(_SDPA):
        operation = _operation_of(study.subject, study.evaluator.hello.device)
        return RootCause(study.subject, Stage.OPERATION, operation, *(_find_broadcast(study) or find_condition(study)))
    needed, features = _find_features(study)
    controls = [Experiment(True, subject=name) for name in (MATH, EAGER) if ablation.fails(name) is False]
    part, value = find_place(study.case, study.result)
    verdict, failure = study.result.verdict, study.result.failure
    kind = _MECHANISMS.get(verdict) or MechanismKind(verdict)
    kind = MechanismKind.DROPOUT if isinstance(failure, DropoutMask) else kind
    mechanism = Mechanism(kind, details(value=value, options=needed))
    return RootCause(study.subject, Stage.KERNEL, part, mechanism, (*controls, *features))


def _find_broadcast(study: Study) -> tuple[Mechanism, tuple[Evidence, ...]] | None:
    """That the call is right with a mask or bias of full size, where that was measured."""
    for name in (name for one in study.result.rewrites for name, right in one.right.items() if EXPANDED in right):
        return Mechanism(MechanismKind.BROADCAST, details(operand=name)), (
            Experiment(True, change=CaseChange.EXPANDED, detail=name),
        )
    return None


def find_place(case: Case, result: SubjectResult) -> tuple[str, str]:
    """Which computation is wrong, such as `attention_backward`, and which gradient, "" where that says no more."""
    value = result.where.value if result.where is not None else getattr(result.failure, "value", "")
    if result.verdict is not Verdict.WRONG_GRADIENT and not is_gradient(value):
        is_either = case.training and result.verdict is Verdict.OUT_OF_BOUNDS
        return "attention" if is_either else "attention_forward", ""
    name = name_gradient(case, value)
    return "attention_backward", name if name.startswith("d") else ""


def _find_features(study: Study) -> tuple[list[str], list[Experiment]]:
    """The options without which the function was measured to be right, as ids, and the experiments."""
    ids = {name: name for name in (*COMPARABLE, "group")}
    if any(contract.causal == "bottom_right" for contract in study.case.contracts):
        ids["causal"] = "causal_bottom_right"
    if "scale:negative" in contract_features(study.case):
        ids["scale"] = "negative_scale"
    tried = {
        name: passes
        for one in study.result.rewrites
        for names, passes in ((one.wrong, False), (one.right, True))
        for name in names
    }
    shown = [
        Experiment(tried[name], change=CaseChange.WITHOUT_FEATURE, detail=DETAIL_LABELS.get(option, option))
        for name, option in ids.items()
        if name in tried
    ]
    needed = [option for name, option in ids.items() if tried.get(name)]
    return needed, sorted(shown, key=lambda one: not one.passes)
