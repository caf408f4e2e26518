"""Which rewrite of the graph is at fault, and by which mistake: each is switched off on its own, then changed on its own."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuzz.bug_identity import PROCESS, SILENT, VALUES, rewrites
from fuzz.evaluator import Evaluator, shows_bug
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import ConstantDiffers, ConstantsNotCompared, Control, Operand, PatternMatched
from fuzz.protocol.failures import normalize
from generators.program.case import Case, Op
from generators.program.edits import valid
from generators.program.type_check import make_op
from triage.attribution import operation
from triage.attribution.root_cause import RootCause

CONSTANTS_IGNORED = "constants of the program ignored"
OTHER_RESULT = "the replacement computes something else"
DTYPES_APART = "an operation is given tensors of two dtypes"
"""Whether compiling or running says so, and how it names them, depends on who computes it first."""

JOINT, PASSES_STAGE = "joint_graph_passes", "graph_passes"

_NUMBER = re.compile(r"sfdp_pattern_(\d+)")
_RAISES = {Verdict.COMPILE_ERROR: "compiling raises", Verdict.RUNTIME_ERROR: "running raises"}


@dataclass(frozen=True, slots=True)
class _Idea:
    """A mistake that a replacement may make, and how to tell: `control` is one under which the replacement stays and
    the mistake is mended, or `case` one without what it takes. `evidence`: what is said where that is right. Where what is raised has the words
    `error`, another failure that comes to light is none of this mistake's."""

    mechanism: str
    evidence: str
    control: Control | None = None
    case: Case | None = None
    error: str = ""


def cause(case: Case, base: str, result: SubjectResult, trials: Evaluator) -> RootCause:
    """Who among the rewrites is at fault. `base` is the subject that shows it, `result` what it gave."""
    recorded = trials.judge(case, base, Control("matches_recorded")).observations
    matches = [item for item in recorded if isinstance(item, PatternMatched)]
    if trials.fails(case, base, Control("without_attention_patterns")) is False:
        return _attention(case, base, result, matches, trials)
    if trials.fails(case, base, Control("pattern_matcher_off")) is False:
        return _other(case, base, result, trials)
    kept = ("With the pattern matcher off it still fails.",)
    return RootCause("inductor", PASSES_STAGE, "", raised(result) or _silent(result), kept)


def raised(result: SubjectResult) -> str:
    """The error a result tells of, without what changes from case to case; "" where it tells of none."""
    how = _RAISES.get(result.verdict)
    if how and "expected scalar type" in result.message:
        return DTYPES_APART
    return f"{how} {normalize(result.message)[:120]}" if how else ""


def lost(result: SubjectResult) -> str:
    """How a process was lost, and where as far as it is told: which allocation is the one too many is chance."""
    how = str(result.verdict).replace("_", " ")
    return how if result.verdict is Verdict.OUT_OF_MEMORY else f"{how}: {normalize(result.message)[:120]}"


def _mended(idea: _Idea, result: SubjectResult, changed: SubjectResult) -> bool:
    """Whether a change took the failure away."""
    if shows_bug(changed) is False:
        return True
    here = bool(idea.error) and result.verdict in _RAISES and idea.error in result.message
    return here and changed.verdict not in {Verdict.SKIPPED, *PROCESS} and idea.error not in changed.message


def _silent(result: SubjectResult) -> str:
    if result.verdict is Verdict.METADATA:
        return "strides in another order" if "strides" in result.message else "another form of result"
    return str(result.verdict).replace("_", " ")


def _attention(
    case: Case, base: str, result: SubjectResult, matches: list[PatternMatched], trials: Evaluator
) -> RootCause:
    guilty, told_of = _guilty(case, base, matches, trials)
    evidence = [told_of]
    part = f"_sfdp_pattern_{guilty[0]}" if guilty else "patterns of attention"
    for idea in _ideas(case, _operands_of(matches, guilty)):
        controls = (idea.control,) if idea.control else ()
        if _mended(idea, result, trials.judge(idea.case or case, base, *controls)):
            return RootCause("inductor", JOINT, part, idea.mechanism, (*evidence, idea.evidence))
    compared = trials.judge(case, base, Control("constants_compared"))
    differ = [item for item in compared.observations if isinstance(item, ConstantDiffers)]
    if differ and shows_bug(compared) is False:
        said = "; ".join(dict.fromkeys(map(constant, differ)))
        evidence.append(
            f"It goes away where a pattern takes no program whose constants are others than its own: {said}."
        )
        return RootCause("inductor", JOINT, part, CONSTANTS_IGNORED, tuple(evidence))
    if not differ:
        why = _incomparable(compared)
        evidence.append(
            f"The constants of the program and the pattern could not be compared: {why}."
            if why
            else "All constants of the program are the pattern's."
        )
    if trials.fails(case, base, Control("sdpa", "by_steps")) is False:
        evidence.append("It goes away where the replacement computes its fused call in plain steps.")
        if result.verdict in VALUES:
            return _fused(case, base, part, result, evidence, trials)
    mechanism = raised(result) or (OTHER_RESULT if result.verdict in VALUES else _silent(result))
    return RootCause("inductor", JOINT, part, mechanism, tuple(evidence))


def _guilty(case: Case, base: str, matches: list[PatternMatched], trials: Evaluator) -> tuple[list[str], str]:
    """The numbers of the patterns at fault, or of all that matched where none is told apart, and the sentence that says so."""
    names = sorted({match.pattern for match in matches})
    numbers = list(dict.fromkeys(found[1] for name in names if (found := _NUMBER.search(name))))
    for number in numbers:
        if trials.fails(case, base, Control("without_pattern", number)) is False:
            return [number], f"It goes away with _sfdp_pattern_{number} off and all other rewrites on."
    # One takes what another leaves: look at each on its own.
    shown = [n for n in numbers if trials.fails(case, base, Control("only_pattern", n))]
    told = " and ".join(f"_sfdp_pattern_{n}" for n in shown)
    alone = f"{told} {'shows' if len(shown) == 1 else 'each show'} it alone" if shown else "none shows it alone"
    return shown or numbers, f"It goes away with the patterns of attention off; {alone}."


def _incomparable(compared: SubjectResult) -> str:
    """Why nothing is known of the constants where the control tells of none that differs; "" where they were compared."""
    for item in compared.observations:
        if isinstance(item, ConstantsNotCompared):
            return f"{item.pattern}: {item.why}"
    if compared.verdict is Verdict.OK or compared.verdict in SILENT:
        return ""
    return f"the control ends with {str(compared.verdict).replace('_', ' ')}" + (
        f", {line[:120]}" if (line := " ".join(compared.message.split())) else ""
    )


def _fused(
    case: Case, base: str, part: str, result: SubjectResult, evidence: list[str], trials: Evaluator
) -> RootCause:
    """A replacement that is right and calls an operation that is not: by which mistake, if that can be told."""
    evidence = [*evidence, f"The fused call is that of {part}."]
    device = trials.hello.device
    if trials.fails(case, base, Control("sdpa", "operands_copied")) is False:
        copied = "It goes away where the replacement copies its operands into contiguous memory first."
        return operation.of_fused_call(device, operation.layout(case), (*evidence, copied))

    stays: list[bool] = []

    def fails(other: Case) -> bool | None:
        judged = trials.judge(other, base)
        # A program that the pattern leaves alone has no fused call.
        found = shows_bug(judged) if part.removeprefix("_") in rewrites(judged.fired) else None
        stays.extend([] if found is None else [found])
        return found

    mechanism, said = operation.taken(case, result, fails)
    untold = not stays and mechanism in ("wrong", "not finite")  # no change could be judged
    return operation.of_fused_call(device, mechanism, tuple(evidence) if untold else (*evidence, *said))


def _operands_of(matches: list[PatternMatched], guilty: list[str]) -> tuple[Operand, ...]:
    """The operands of the first match by the guilty pattern."""
    for match in sorted(matches, key=lambda match: match.pattern):
        found = _NUMBER.search(match.pattern)
        if found and found[1] in guilty[:1]:
            return match.operands
    return ()


_OPERATIONS = {"amax": "softmax over", "sum": "softmax over", "full": "the fill", "convert_element_type": "a cast to"}


def constant(found: ConstantDiffers) -> str:
    """A constant that differs, in words: "softmax over [1] where the pattern has [-1]"."""
    operation = _OPERATIONS.get(found.operation, found.operation)
    return f"{operation} {found.program} where the pattern has {found.expected}"


def _ideas(case: Case, operands: tuple[Operand, ...]) -> Iterator[_Idea]:
    """Mistakes that the operands of the match allow, the particular ones first."""
    tensors = {operand.name: operand for operand in operands if operand.is_tensor}
    mask = tensors.get("attn_mask") or tensors.get("causal_mask")
    scale = next((tensors[name] for name in ("inv_scale", "scale_factor") if name in tensors), None)
    if scale is not None:
        yield _Idea(
            "a 0-d tensor as scale",
            "It goes away where that scale is multiplied with the query.",
            Control("sdpa", "scale_as_tensor"),
            error="'scale'",
        )
    if mask is not None and mask.dtype == "bool":
        yield _Idea(
            "a boolean mask that is added is taken for one that hides",
            "It goes away where the replacement hands over the mask as 0.0 and 1.0.",
            Control("sdpa", "mask_added"),
        )
    if mask is not None:
        rank = len(mask.shape)
        yield _Idea(
            f"mask of rank {rank}" if rank < 2 else "a mask that broadcasts",
            "It goes away where the replacement expands the mask to the scores' shape.",
            Control("sdpa", "mask_expanded"),
        )
    yield _Idea(
        "a dimension that broadcasts",
        "It goes away where the replacement expands its operands to one another's batches and heads.",
        Control("sdpa", "operands_expanded"),
    )
    divided = _with_float_divisors(case)
    if divided is not None:
        yield _Idea(
            "a whole number as divisor",
            "It goes away with the same divisor as a float.",
            case=divided,
            error="list index out of range",
        )
    flagged = _with_flags(case)
    if flagged is not None:
        yield _Idea("a mask of integers other than 0 and 1", "It goes away with a mask of 0 and 1.", case=flagged)


def _with_float_divisors(case: Case) -> Case | None:
    def changed(op: Op) -> Op:
        other = op.attr("other")
        if op.kind not in ("div", "mul") or isinstance(other, bool) or not isinstance(other, int):
            return op
        return make_op(op.name, op.kind, op.args, {**dict(op.attrs), "other": float(other)})

    other = valid(replace(case, ops=tuple(changed(op) for op in case.ops)))
    return None if other is None or other.canonical() == case.canonical() else other  # 3 == 3.0


def _with_flags(case: Case) -> Case | None:
    numbers = {"int64", "int32", "int8", "uint8"}
    read = {arg for op in case.ops if op.kind in ("eq", "ne", "compare") for arg in op.args}
    inputs = tuple(
        replace(item, values=replace(item.values, kind="zero_one"))
        if item.dtype in numbers and item.values.kind not in ("zero_one", "tokens") and (item.name in read or not read)
        else item
        for item in case.inputs
    )
    return None if inputs == case.inputs else valid(replace(case, inputs=inputs))


def _other(case: Case, base: str, result: SubjectResult, trials: Evaluator) -> RootCause:
    """A rewrite that is none of attention."""
    mechanism = raised(result) or _silent(result)
    names = sorted(rewrites(result.fired)) + sorted(set(result.fired))
    for name in dict.fromkeys(names):
        if trials.fails(case, base, Control("without_rewrite", name)) is False:
            return RootCause(
                "inductor",
                PASSES_STAGE,
                name,
                mechanism,
                (f"It goes away with the rewrite {name} off and all others on.",),
            )
    return RootCause("inductor", PASSES_STAGE, "", mechanism, ("It goes away with the pattern matcher off.",))
