"""Who is to blame, or why nobody is: what an ablation says, in sentences."""

from fuzz.campaign.symptom import operation_of, rewrites
from fuzz.protocol import SubjectResult, Verdict
from triage.attribution.ablation import (
    AOT_EAGER,
    DYNAMIC,
    EAGER,
    EMULATED_CASTS,
    INDUCTOR,
    NO_PATTERNS,
    PASSES,
    Ablation,
)
from triage.attribution.root_cause import RootCause

_VALUES = frozenset({Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT})

_KEPT_IN_FLOAT32 = (
    "Inductor keeps intermediate results in float32 where eager rounds them, by design (pytorch#183761, pytorch#154009)"
)

_WHY_NOT = {
    Verdict.OK: "Compiled is as close to float64 as eager is.",
    Verdict.ILL_CONDITIONED: (
        "The program is numerically unstable: eager itself moves as far when every operation is off by one ulp"
        " (pytorch#178879)."
    ),
    Verdict.CONVENTION: "The results differ only where there is no right answer: eager or float64 is not finite there.",
    Verdict.PRECISION_POLICY: f"{_KEPT_IN_FLOAT32}, or computes float32 products in TF32 because it is allowed to.",
    Verdict.RANDOM_STREAM: "Active dropout drew other random numbers, which is by design (pytorch#172206).",
}


def refusal(ablation: Ablation) -> str | None:
    """Why this is no bug of torch.compile, in at most two sentences; None when it is one."""
    result = ablation.result
    if result.verdict is Verdict.EAGER_SUSPECT:
        return None
    # An eager that is wrong in an operation of its own acquits no compiler: both are held against float64.
    if ablation.fails(EAGER) and ablation.stages[EAGER].verdict is not Verdict.EAGER_SUSPECT:
        return f"Eager fails too ({ablation.stages[EAGER].verdict}), so torch.compile can't be blamed."
    if not result.verdict.is_finding:
        why = _WHY_NOT.get(result.verdict, f"The verdict is {result.verdict}: {result.verdict.explanation}.")
        if result.verdict is Verdict.ROUNDING:
            why = _rounding(result)
        if ablation.fails(PASSES):
            why += " Only Inductor's graph passes on their own show a difference; no user runs them so."
        return why
    if result.verdict in _VALUES and ablation.fails(EMULATED_CASTS) is False:
        return f"The difference goes away with emulate_precision_casts=True: {_KEPT_IN_FLOAT32}."
    return None


def _rounding(result: SubjectResult) -> str:
    """Why a report of rounding would be wrong, in two sentences."""
    numbers = result.numbers
    errors = "Compiled and eager differ, and neither is far from float64"
    if "eager_error" in numbers:
        errors = (
            f"Against float64 the compiled result is off by at most {numbers['compiled_error']:.2g} and eager's own by"
            f" {numbers['eager_error']:.2g}"
        )
    same = "" if result.same is None else f", and torch._dynamo.utils.same(eager, compiled, fp64_ref) is {result.same}"
    moved = (
        f" ({numbers['ratio']:.2g} times as far at worst, limit {numbers['limit']:g})"
        if {"ratio", "limit"} <= numbers.keys()
        else ""
    )
    return (
        f"{errors}{same}: filing this would be wrong. One-ulp changes of its operations move eager about as far{moved}, and PyTorch"
        " guarantees no order of floating-point accumulation (pytorch#179578)."
    )


def accepted(ablation: Ablation) -> str:
    """Why a finding that repro.py does not show is not reported."""
    if ablation.result.verdict in _VALUES:
        return (
            "Some rows are further from float64 than rounding explains, but torch._dynamo.utils.same, which decides for"
            " PyTorch, accepts the whole: repro.py exits with 0."
        )
    return f"A worker saw {ablation.result.verdict}, but repro.py, a process of its own, does not show it."


def blame(ablation: Ablation) -> str:
    """Which part of the compiler the ablation points at, or which operation of eager is wrong, in one sentence."""
    if ablation.result.verdict is Verdict.EAGER_SUSPECT:
        return (
            "Every operation that eager ran was computed again in float64 from the same arguments:"
            f" `{operation_of(ablation.result)}` is the first whose result rounding does not explain, and with its wrong elements"
            " put right the module is right."
        )
    if ablation.fails(AOT_EAGER):
        return 'backend="aot_eager" fails too, so the fault is in Dynamo or AOTAutograd, before Inductor.'
    if ablation.fails(PASSES):
        if ablation.fails(NO_PATTERNS) is False:
            fired = _attention(ablation.result.fired or ablation.stages[PASSES].fired)
            named = f" ({', '.join(fired)})" if fired else ""
            return f"It goes away with the pattern matcher off, so the fault is in a rewrite of the graph{named}."
        return "Inductor's graph passes alone show it, so the fault is in one of them."
    if ablation.fails(PASSES) is False:
        only = (
            ", and only with symbolic sizes"
            if ablation.accused == DYNAMIC and ablation.fails(INDUCTOR) is False
            else ""
        )
        return f"Inductor's graph passes alone don't show it, so the fault is in lowering or code generation{only}."
    return "Inductor's graph passes can't be run alone here, so the part to blame is open."


def sentence(cause: RootCause) -> str:
    """Who is at fault by what, in one sentence."""
    if cause.who == "inductor":
        where = f"`{cause.part}`" if cause.part else "one that is open"
        if "sfdp" in cause.part:
            return f"The fault is in Inductor's `{cause.stage}`, the rewrites of attention, here {where}: {cause.mechanism}."
        kind = {"lowering": "the lowering", "codegen": "code generation"}.get(cause.stage, "the rewrite")
        return f"The fault is in Inductor's `{cause.stage}`, {kind} {where}: {cause.mechanism}."
    if cause.who == "aot":
        return f"The fault is before Inductor, in Dynamo or AOTAutograd{f' ({cause.part})' if cause.part else ''}: {cause.mechanism}."
    return f"The fault is in `{cause.part}`: {cause.mechanism}."


def _attention(fired: tuple[str, ...]) -> tuple[str, ...]:
    """The rewrites that replace attention; where there are none, those that can carry a bug."""
    return tuple(name for name in fired if "sfdp" in name) or tuple(name for name in fired if rewrites((name,)))
