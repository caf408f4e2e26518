"""Why a finding is no bug to report, in at most two sentences."""

from fuzz.protocol import SubjectResult, Verdict
from triage.attribution.ablation import EAGER, EMULATED_CASTS, PASSES, Ablation
from triage.report.repro import is_attention

_VALUES = frozenset({Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT})

_KEPT_IN_FLOAT32 = (
    "Inductor keeps intermediate results in float32 where eager rounds them, by design (pytorch#183761, pytorch#154009)"
)

_REASONS = {
    Verdict.OK: "Compiled is as close to float64 as eager is.",
    Verdict.ILL_CONDITIONED: (
        "The program is numerically unstable: eager itself changes as much when every operation is off by one ulp"
        " (pytorch#178879)."
    ),
    Verdict.CONVENTION: "The results differ only where no result is right: eager or float64 is not finite there.",
    Verdict.PRECISION_POLICY: f"{_KEPT_IN_FLOAT32}, or computes float32 products in TF32 because that is allowed.",
    Verdict.RANDOM_STREAM: "Active dropout drew other random numbers, which is by design (pytorch#172206).",
}


def refuse(ablation: Ablation) -> str | None:
    """Why this is no bug of torch.compile, of eager or of the attention function; None when it is one."""
    result, verdict = ablation.result, ablation.result.verdict
    blamed = "the kernel" if is_attention(ablation.accused) else "torch.compile"
    if verdict is Verdict.EAGER_SUSPECT:
        if is_attention(ablation.accused):
            return (
                f"Eager is wrong, not the kernel: {verdict.explanation}. Leave out --subject for a report about eager."
            )
        return None
    # A wrong operation of eager excuses no compiler: both are compared with float64.
    if ablation.fails(EAGER) and ablation.stages[EAGER].verdict is not Verdict.EAGER_SUSPECT:
        return f"Eager fails too ({ablation.stages[EAGER].verdict}), so {blamed} can't be blamed."
    if is_attention(ablation.accused):
        return None if verdict.is_finding else f"The verdict is {verdict}: {verdict.explanation}."
    if not verdict.is_finding:
        why = _REASONS.get(verdict, f"The verdict is {verdict}: {verdict.explanation}.")
        if verdict is Verdict.ROUNDING:
            why = _explain_rounding(result)
        if ablation.fails(PASSES):
            why += " Only Inductor's graph passes on their own show a difference, and no user runs them so."
        return why
    if verdict in _VALUES and ablation.fails(EMULATED_CASTS) is False:
        return f"The difference goes away with emulate_precision_casts=True: {_KEPT_IN_FLOAT32}."
    return None


def refuse_unshown(ablation: Ablation) -> str:
    """Why a finding that repro.py does not show is not reported."""
    if not is_attention(ablation.accused) and ablation.result.verdict in _VALUES:
        return (
            "Some rows are further from float64 than rounding explains, but torch._dynamo.utils.same, PyTorch's own"
            " check, accepts the whole: repro.py exits with 0."
        )
    return f"A worker saw {ablation.result.verdict}, but repro.py, run in a process of its own, does not show it."


def _explain_rounding(result: SubjectResult) -> str:
    numbers = result.numbers
    errors = "Compiled and eager differ, and neither is far from float64"
    if "eager_error" in numbers:
        errors = (
            f"The largest error against float64 is {numbers['compiled_error']:.2g} for compiled and"
            f" {numbers['eager_error']:.2g} for eager"
        )
    same = "" if result.same is None else f", and torch._dynamo.utils.same(eager, compiled, fp64_ref) is {result.same}"
    ratio = ""
    if {"ratio", "limit"} <= numbers.keys():
        ratio = f" ({numbers['ratio']:.2g} times as much at worst, limit {numbers['limit']:g})"
    return (
        f"{errors}{same}: filing this would be wrong. One-ulp changes of its operations change eager about as much"
        f"{ratio}, and PyTorch guarantees no order of floating-point accumulation (pytorch#179578)."
    )
