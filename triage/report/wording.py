"""Text of reports and pages: title, summary and cause of a finding, or the reason why it is not reported."""

import math
import textwrap
from collections.abc import Iterator
from dataclasses import replace

from corpus.causes import Mechanism, MechanismKind, Part, name_part
from fuzz.bug_identity import attention_patterns, operation_of
from fuzz.error_location import describe_with_names, find_name, name_gradient, name_value
from fuzz.protocol import SubjectResult, Verdict, failures
from fuzz.protocol.render import describe
from fuzz.subjects import get_spec
from generators.program.case import Case
from generators.program.ops import VIEWS
from generators.program.roles import find_attentions, trace
from generators.program.settings import describe_settings
from generators.program.state import TARGETS, describe_differences, list_targets
from generators.program.type_check import attributes, types_of
from generators.program.values import LOW_PRECISION
from triage.attribution.ablation import EAGER, Ablation, is_attention, label
from triage.attribution.root_cause import RootCause, operands_mechanism
from triage.attribution.study import mechanism_of
from triage.report.repro import is_kernel, is_of_config

_DOES = {
    Verdict.WRONG_RESULT: "returns a wrong result",
    Verdict.WRONG_GRADIENT: "computes a wrong gradient",
    Verdict.NONFINITE: "returns NaN or infinity where eager and float64 are finite",
    Verdict.METADATA: "returns a tensor in another form than eager's",
    Verdict.NONDETERMINISTIC: "returns different results for equal inputs",
    Verdict.OUT_OF_BOUNDS: "writes out of bounds",
    Verdict.EAGER_SUSPECT: "returns a wrong result in eager mode",
    Verdict.STATE_CHANGED: "changes state of the whole process",
    Verdict.COMPILE_ERROR: "fails to compile",
    Verdict.RUNTIME_ERROR: "raises",
    Verdict.DEVICE_ERROR: "ends in a CUDA error",
    Verdict.TIMEOUT: "hangs",
    Verdict.WORKER_DIED: "crashes the process",
    Verdict.OUT_OF_MEMORY: "runs out of memory",
}
"""The predicate of a summary."""

_ROLES = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask bias", "causal_mask": "mask"}
"""Roles in an attention that an argument of a pattern may have."""

_MECHANISMS = {MechanismKind.CONSTANTS_IGNORED: "it takes programs whose constants are not the pattern's"}
_BEFORE_INDUCTOR: dict[str, str] = {
    Part.RECOMPUTATION: "AOTAutograd: what the backward pass computes again",
    Part.DECOMPOSITIONS: "decompositions or AOTAutograd's partitioner",
    Part.TORCH_EXPORT: "torch.export",
}


def refuse(ablation: Ablation) -> str | None:
    """Why this is no bug of torch.compile, of eager or of the attention function; None when it is one."""
    verdict, is_function = ablation.result.verdict, is_attention(ablation.accused)
    blamed = "the kernel" if is_function else "torch.compile"
    if verdict is Verdict.EAGER_SUSPECT:
        why = f"Eager is wrong, not the kernel: {verdict.explanation}. Leave out --subject for a report about eager."
        return why if is_function else None
    # A wrong operation of eager excuses no compiler: both are compared with float64.
    if ablation.fails(EAGER) and ablation.stages[EAGER].verdict is not Verdict.EAGER_SUSPECT:
        return f"Eager fails too ({ablation.stages[EAGER].verdict}), so {blamed} can't be blamed."
    return None if verdict.is_finding else f"The verdict is {verdict}: {verdict.explanation}."


def title(case: Case, result: SubjectResult, device: str) -> str:
    """One line such as "[Inductor][CPU] attention with softmax over dim 0: output 0 is off by up to 2.3 from float64,
    eager by 3e-08", or "attention kernel pkg:attention: wrong gradient dq"."""
    if not is_kernel(result):
        name = result.subject if get_spec(result.subject).is_exported else "Inductor"
        compiler = "" if result.verdict is Verdict.EAGER_SUSPECT else f"[{name}]"
        return f"{compiler}[{device.upper()}] {describe_program(case, result)}: {_symptom(case, result)}"
    backend = get_spec(result.subject).sdpa
    who = f"scaled_dot_product_attention, {backend} backend" if backend else f"attention kernel {result.subject}"
    what = str(result.verdict).replace("_", " ")
    if result.verdict is Verdict.WRONG_GRADIENT and result.value:
        what += f" {name_gradient(case, result.value) or f'of {find_name(case, result.value)}'}"
    return f"{who}: {what}"


def summarize(case: Case, ablation: Ablation) -> str:
    """What happens, with which torch and device, and by how much."""
    result, subject = ablation.result, ablation.accused
    where = f"torch {ablation.hello.torch}, {ablation.hello.device_name or ablation.hello.device}"
    does = _DOES[result.verdict]
    if not is_kernel(result):
        under = f" with {quote(label(subject, result.subject, case, as_config=is_of_config(result)))}"
        under = "" if result.verdict is Verdict.EAGER_SUSPECT else under
        return f"The module below {does}{under} ({where}): {_detail(case, result)}."
    mode = "forward and backward" if case.training else "forward"
    name = label(subject) if get_spec(subject).sdpa else f"`{subject}`"
    return f"{name} {does} in the attention below, {mode} ({where}): {_detail(case, result)}."


def quote(words: str) -> str:
    """The words for a stage, as code where they are."""
    return f"`{words}`" if words.startswith("backend=") else words


def describe_cause(ablation: Ablation, cause: RootCause) -> str:
    """Where the fault is, in one sentence, or two for an operation of eager."""
    failure = ablation.result.failure
    if ablation.result.verdict is Verdict.EAGER_SUSPECT and isinstance(failure, failures.FaultyOperation):
        return (
            "Every operation that eager ran was computed again in float64 from the same arguments:"
            f" `{failure.operation}` is the first with an error that rounding does not explain, and with its wrong"
            " elements corrected the module is right."
        )
    # The summary tells the error or the verdict already, and the program shows a write.
    repeats = cause.mechanism in (mechanism_of(ablation.result), Mechanism(MechanismKind(ablation.result.verdict)))
    words = _MECHANISMS.get(cause.mechanism.kind, str(cause.mechanism))
    is_plain = cause.mechanism.kind in (MechanismKind.OTHER_VALUES, MechanismKind.WRITTEN)
    how = "" if repeats or is_plain else f": {words}"
    stage = {"inductor": f"Inductor's `{cause.stage}`", "aot": "AOTAutograd", "dynamo": "Dynamo"}.get(cause.who)
    if stage and not cause.part:
        return f"The first stage that fails is {stage}{how}. Which part of it is not known."
    if cause.part == Part.AOT_INDUCTOR_PACKAGE:
        return f"The fault is in {Part.AOT_INDUCTOR_PACKAGE.label}: torch.compile and torch.export pass{how}."
    where, name = f"`{cause.part}`", name_part(cause.part, cause.stage)
    if cause.who == "aot":
        where = _BEFORE_INDUCTOR.get(cause.part, f"the {name}")
    elif cause.who == "inductor" and cause.stage == "codegen":
        where = f"Inductor's code generation, {name}"
    elif cause.who == "inductor":
        kind = "the lowering" if cause.stage == "lowering" else "the rewrite"
        where = f"{stage}, {'the attention pattern' if cause.is_attention_pattern else kind} {where}"
    else:
        how = f": {cause.mechanism}"
    return f"The fault is in {where}{how}."


def name_operands(case: Case, cause: RootCause) -> RootCause:
    """The cause with the program's inputs in the place of a pattern's arguments that are views of them."""
    made = {op.name: op for op in case.ops}
    attentions = find_attentions(case)
    reads = attentions[0].reads if len(attentions) == 1 else {}
    read = {argument: [reads[role] for role in roles.split() if role in reads] for argument, roles in _ROLES.items()}
    paths = {argument: trace(case, places[0]) for argument, places in read.items() if len(places) == 1}
    names = {argument: path[-1] for argument, path in paths.items() if all(made[n].kind in VIEWS for n in path[:-1])}

    def rename(changes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {names.get(argument, argument): tried for argument, tried in changes.items()}

    renamed = (replace(one, right=rename(one.right), wrong=rename(one.wrong)) for one in cause.rewrites)
    cause = replace(cause, rewrites=tuple(renamed))
    return replace(cause, mechanism=operands_mechanism(cause.measured)) if cause.measured else cause


def _detail(case: Case, result: SubjectResult) -> str:
    """The failure, with the program's names for its values; of wrong values the largest error, as repro.py prints."""
    failure, off, eager = result.failure, *map(result.numbers.get, ("compiled_error", "eager_error"))
    if not isinstance(failure, failures.WrongValue) or result.value is None or off is None or eager is None:
        if isinstance(failure, failures.Raised) and failure.text.endswith("…"):
            failure = replace(failure, text=failure.text.rpartition(". ")[0] or failure.text)
        words = describe_with_names(case, replace(result, failure=failure))
        return words.rstrip(".!… ") or result.verdict.explanation
    return f"{name_value(case, result.value)} is off by up to {off:.2g} from float64, eager by {eager:.2g}"


def _symptom(case: Case, result: SubjectResult) -> str:
    verdict = result.verdict
    if verdict is Verdict.EAGER_SUSPECT:
        operation = f" ({operation_of(result)})" if operation_of(result) else ""
        error = result.numbers.get("eager_error", math.inf)
        if not math.isfinite(error):
            return f"eager gives NaN or inf, float64 is finite{operation}"
        return f"eager is off by {error:.2g} from float64{operation}"
    if verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        when = "compiling" if verdict is Verdict.COMPILE_ERROR else "the compiled program"
        return f"{when} raises {textwrap.shorten(describe(result), 90, placeholder=' …')}"
    return _detail(case, result)


def describe_program(case: Case, result: SubjectResult) -> str:
    """The program in a few words: what it computes, which attention patterns match it, what is unusual."""
    kinds = [op.kind for op in case.ops]
    named = [kind for kind in kinds if kind not in VIEWS | {"scalar"}] or kinds
    few = ", ".join([*named[:3], *(["..."] if len(named) > 3 else [])])
    few += "".join(f" (_{pattern})" for pattern in sorted(attention_patterns(result.applied_rewrites)))
    what = "scaled_dot_product_attention" if "sdpa" in kinds else "attention" if find_attentions(case) else few
    unusual = list(dict.fromkeys(_list_unusual(case)))[:2]
    low = sorted({item.dtype for item in case.inputs if item.dtype in LOW_PRECISION})
    settings = describe_settings(dict(case.settings), as_config=is_of_config(result))
    words = [
        f"{what} written as {few}" if what == "attention" and not unusual else what,
        f"with {' and '.join(unusual)}" if unusual else "",
        f"in {' and '.join(low)}" if low else "",
        "in training" if case.training else "",
        f"with {case.checkpoint} checkpointing" if case.checkpoint else "",
        "with symbolic sizes" if case.dynamic else "",
        f"with {settings}" if settings else "",
        f"called again with {describe_differences(case)}" if case.calls else "",
    ]
    return " ".join(filter(None, words))


def _list_unusual(case: Case) -> Iterator[str]:
    types = types_of(case)
    yield from (f"a write into {TARGETS[target]}" for target in list_targets(case))
    for op in case.ops:
        attrs = attributes(op)
        if op.kind == "sdpa" and (attrs["scale"] or 0) < 0:
            yield "a negative scale"
        if op.kind == "sdpa" and attrs["is_causal"]:
            yield "is_causal"
        if op.kind == "softmax" and attrs["dim"] not in (-1, types[op.args[0]].rank - 1):
            yield f"softmax over dim {attrs['dim']}"
