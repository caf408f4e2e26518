"""Which operation of eager, or which backend of F.scaled_dot_product_attention, is wrong, and what it takes."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from corpus.passes.contracts import simplify_contract
from fuzz.bug_identity import operation_of
from fuzz.evaluator import Evaluator
from fuzz.protocol import SubjectResult, Verdict
from fuzz.relations import relation_of
from generators.program.case import Case, Op
from generators.program.dtypes import LOW_PRECISION
from generators.program.edits import valid
from generators.program.type_check import make_op, types_of
from triage.attribution.root_cause import RootCause

_SDPA = {
    "_scaled_dot_product_flash_attention_for_cpu": "sdpa_flash",
    "_scaled_dot_product_flash_attention": "sdpa_flash",
    "_scaled_dot_product_efficient_attention": "sdpa_efficient",
    "_scaled_dot_product_cudnn_attention": "sdpa_cudnn",
}
"""Whose operation it is: the subject that asks for this backend."""

NEGATIVE_CAUSAL = "a negative scale with is_causal"


def cause(case: Case, result: SubjectResult, trials: Evaluator) -> RootCause:
    """Who is at fault where eager is wrong in an operation of its own."""
    operation = operation_of(result)
    who = _SDPA.get(operation.removeprefix("aten."), "eager")
    return RootCause(who, "operation", operation, *taken(case, result, lambda other: trials.fails(other, "eager")))


def of_backend(case: Case, subject: str, result: SubjectResult, trials: Evaluator) -> RootCause:
    """Who is at fault where a backend of F.scaled_dot_product_attention is: its operation on this device."""
    return RootCause(
        subject,
        "operation",
        _operation_of(subject, trials.hello.device),
        *taken(case, result, lambda other: trials.fails(other, subject)),
    )


def taken(case: Case, result: SubjectResult, fails: Callable[[Case], bool | None]) -> tuple[str, tuple[str, ...]]:
    """What it takes for the operation to be wrong: a phrase, and the evidence. `fails` says whether it is wrong in another case,
    None where that can't be told."""
    relation = relation_of(result.message)
    if relation == "-q and -scale" and any(contract.causal for contract in case.contracts):
        return NEGATIVE_CAUSAL, (
            f"The relation {relation!r} is broken: of two calls that must give the same, one has the scale negated.",
        )
    positive = _with_positive_scale(case)
    if positive is not None and fails(positive) is False:
        told = "It goes away with the scale positive"
        if any(fails(other) is False for other in _without_causality(case)):
            return NEGATIVE_CAUSAL, (f"{told}, and without causality.",)
        return "a negative scale", (f"{told}.",)
    contiguous = with_contiguous_operands(case)
    if contiguous is not None and fails(contiguous) is False:
        return layout(case), ("It goes away with contiguous copies of the operands.",)
    how = (
        "not finite"
        if result.verdict is Verdict.NONFINITE or " gives nan" in result.message or " gives inf" in result.message
        else "wrong"
    )
    low = sorted({value.dtype for value in types_of(case).values()} & set(LOW_PRECISION))
    float32 = in_float32(case)
    if low and float32 is not None and fails(float32) is False:
        return f"{how} in {low[0]}", ("It goes away in float32.",)
    return how, ("No change of scale, causality, memory layout or dtype mends it.",)


def layout(case: Case) -> str:
    """How operands lie in memory that are wrong unless they are copied."""
    overlap = any(op.kind in ("unfold", "expand", "expand_as") for op in case.ops)
    return "operands whose rows overlap in memory" if overlap else "operands that are not contiguous"


def of_fused_call(device: str, mechanism: str, evidence: tuple[str, ...]) -> RootCause:
    """Who is at fault where the fused call of a replacement is: the backend that PyTorch chooses, flash on the CPU."""
    if device == "cpu":
        return RootCause("sdpa_flash", "operation", _operation_of("sdpa_flash", device), mechanism, evidence)
    return RootCause("eager", "operation", "aten.scaled_dot_product_attention", mechanism, evidence)


def _operation_of(subject: str, device: str) -> str:
    names = [
        name for name, backend in _SDPA.items() if backend == subject and name.endswith("_for_cpu") == (device == "cpu")
    ]
    return f"aten.{names[0]}" if names else subject


def _with_positive_scale(case: Case) -> Case | None:
    def changed(op: Op) -> Op:
        attrs = {
            key: abs(value)
            if key in ("scale", "other") and isinstance(value, (int, float)) and not isinstance(value, bool)
            else value
            for key, value in op.attrs
        }
        return make_op(op.name, op.kind, op.args, attrs)

    contracts = tuple(replace(contract, scale=abs(contract.scale)) for contract in case.contracts)
    other = valid(replace(case, ops=tuple(changed(op) for op in case.ops), contracts=contracts))
    return None if other is None or other.canonical() == case.canonical() else other


def _without_causality(case: Case) -> Iterator[Case]:
    ops = tuple(make_op(op.name, op.kind, op.args, {k: v for k, v in op.attrs if k != "is_causal"}) for op in case.ops)
    contracts = tuple(replace(contract, causal=None) for contract in case.contracts)
    if ops != case.ops:
        other = valid(replace(case, ops=ops, contracts=contracts))
        if other is not None:
            yield other
        return
    for other in simplify_contract(case):
        if (
            other.contracts
            and other.contracts[0].causal is None
            and other.contracts[0].scale == case.contracts[0].scale
        ):
            yield other


def with_contiguous_operands(case: Case) -> Case | None:
    """The case with copies of what its contract reads, or its fused calls."""
    wanted = {name for contract in case.contracts for name in (contract.q, contract.k, contract.v)}
    wanted |= {arg for op in case.ops if op.kind in ("sdpa", "bmm", "matmul") for arg in op.args[:3]}
    made = {op.name for op in case.ops} & wanted
    used = {item.name for item in case.inputs} | {op.name for op in case.ops}
    names = {
        name: next(n for n in (f"{name[:24]}_copy{i or ''}" for i in itertools.count()) if n not in used)
        for name in made
    }
    ops: list[Op] = []
    for op in case.ops:
        ops.append(replace(op, args=tuple(names.get(arg, arg) for arg in op.args)))
        if op.name in names:
            ops.append(make_op(names[op.name], "clone", (op.name,), {"memory_format": "contiguous"}))
    inputs = tuple(replace(item, layout="contiguous") for item in case.inputs)
    contracts = tuple(contract.renamed(names) for contract in case.contracts)
    other = valid(replace(case, ops=tuple(ops), inputs=inputs, contracts=contracts))
    return None if other is None or other.canonical() == case.canonical() else other


def in_float32(case: Case) -> Case | None:
    """The case in float32 throughout, None where it is."""
    return in_dtype(case, "float32")


def in_dtype(case: Case, dtype: str) -> Case | None:
    """The case with that dtype in the place of every floating one; None where it is no other case then."""
    floats = ("float32", *LOW_PRECISION)
    inputs = tuple(replace(item, dtype=dtype) if item.dtype in floats else item for item in case.inputs)
    ops = tuple(
        make_op(op.name, op.kind, op.args, {key: dtype if value in floats else value for key, value in op.attrs})
        for op in case.ops
    )
    other = valid(replace(case, inputs=inputs, ops=ops))
    return None if other is None or other.canonical() == case.canonical() else other
