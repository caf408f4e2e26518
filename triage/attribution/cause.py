"""Attribution: from a case to its root cause, with the evidence."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from corpus.entry import Entry
from fuzz.bug_identity import PROCESS
from fuzz.evaluator import Evaluator, WorkerConfig, open_evaluator
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.controls import Control
from fuzz.subjects import get_spec, is_named
from generators.errors import UserError
from triage.attribution import kernel_cause, operation, rewrite
from triage.attribution.ablation import (
    AOT_EAGER,
    ATTENTION_OFF,
    CONSTANTS,
    DECOMPOSED,
    DYNAMIC,
    EAGER,
    INDUCTOR,
    MATH,
    MATH_FORCED,
    PASSES,
    UNFUSED,
    UNVECTORISED,
    Ablation,
    cheapest,
    run_ablation,
)
from triage.attribution.bisector import Bisection
from triage.attribution.root_cause import RootCause

__all__ = ["Attribution", "RootCause", "attribute", "attributed"]

AOT = "dynamo/aot"
_SYMBOLIC = "passes_dynamic"
LOWERING, CODEGEN = "lowering", "codegen"


@dataclass(frozen=True, slots=True)
class Attribution:
    """A finding's cause, the ablation and the bisection it rests on, and the seconds it took, by step.

    `case`, `subject` and `torch` say of what.
    """

    cause: RootCause
    case: str = ""
    subject: str = ""
    torch: str = ""
    ablation: Ablation | None = None
    bisection: Bisection | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def attribute(entry: Entry, setup: WorkerConfig, bisection: Bisection | None = None) -> Attribution:
    """Judge a case on the stages of the ablation and under controls, and say who is at fault, by what.

    `setup.named` has the function of the user's that a case is about, if any. Raises UserError where the case shows no bug,
    or can't be judged.
    """
    with open_evaluator(setup, repeat=1, with_error_map=True, remember=True) as trials:
        return attributed(entry, trials, bisection)


def attributed(
    entry: Entry, trials: Evaluator, bisection: Bisection | None = None, ablation: Ablation | None = None
) -> Attribution:
    """As `attribute`, with trials at hand, so that many findings share one worker; and with an ablation that was run."""
    clock = _Clock()
    about_function = is_named(entry.subject) or get_spec(entry.subject).is_attention
    if ablation is None:
        with clock("ablation"):
            ablation = (
                _run_kernel_ablation(entry, trials) if about_function else run_ablation(entry, trials, full=False)
            )
    if not ablation.result.verdict.is_finding:
        raise UserError(
            f"case {entry.case.id} shows no bug under torch {ablation.hello.torch}: {ablation.result.verdict}"
        )
    with clock("controls"):
        if ablation.result.verdict in PROCESS:
            found = _lost(entry, ablation, about_function=about_function)
        else:
            found = (
                kernel_cause.cause(entry.case, ablation, trials)
                if about_function
                else _compiler(entry, ablation, trials, bisection)
            )
    ablation = _with_controls(entry, found, ablation, trials)
    return Attribution(found, entry.case.id, entry.subject, ablation.hello.torch, ablation, bisection, clock.seconds)


def _with_controls(entry: Entry, found: RootCause, ablation: Ablation, trials: Evaluator) -> Ablation:
    """The ablation with the stages that name the rewrite; they have been asked for already."""
    number = found.part.removeprefix("_sfdp_pattern_")
    if not number.isdigit():
        return ablation
    base = cheapest(ablation, entry)
    words = "graph passes" if get_spec(base).is_proxy else base
    rows = {
        f"without {found.part}": (
            Control("without_pattern", number),
            f"{words}, the rewrite `{found.part}` off and all others on",
        ),
        ATTENTION_OFF: (Control("without_attention_patterns"), f"{words}, all rewrites of attention off"),
        MATH_FORCED: (Control("sdpa_math"), f"{words}, `sdpa_kernel(SDPBackend.MATH)`"),
        CONSTANTS: (Control("constants_compared"), f"{words}, patterns held against the program's constants"),
    }
    stages = {name: trials.judge(entry.case, base, switch) for name, (switch, _) in rows.items()}
    return replace(
        ablation,
        stages=ablation.stages | stages,
        labels={**ablation.labels, **{name: label for name, (_, label) in rows.items()}},
    )


def _run_kernel_ablation(entry: Entry, trials: Evaluator) -> Ablation:
    stages = {name: trials.evaluate_or_raise(entry.case, name) for name in dict.fromkeys((EAGER, MATH, entry.subject))}
    return Ablation(trials.hello, stages, entry.subject)


def _lost(entry: Entry, ablation: Ablation, *, about_function: bool) -> RootCause:
    """The cause where the process is lost, by the ablation alone: each control would cost a process, and as long as a hang."""
    how = rewrite.lost(ablation.result)
    evidence = ("No controls were tried, since each would lose its process too.",)
    if about_function:
        return RootCause(ablation.accused, "kernel", kernel_cause.place(entry.case, ablation.result), how, evidence)
    if ablation.accused == EAGER:
        return RootCause("eager", "operation", "", how, evidence)
    tried = ((AOT_EAGER, "aot", AOT), (DECOMPOSED, "aot", AOT), (PASSES, "inductor", rewrite.PASSES_STAGE))
    who, stage = next(((who, stage) for name, who, stage in tried if ablation.fails(name)), ("inductor", CODEGEN))
    return RootCause(who, stage, "", how, evidence)


def _compiler(entry: Entry, ablation: Ablation, trials: Evaluator, bisection: Bisection | None) -> RootCause:
    case, result = entry.case, ablation.result
    if result.verdict is Verdict.EAGER_SUSPECT:
        return operation.cause(case, result, trials)
    if ablation.fails(AOT_EAGER):
        evidence = ('backend="aot_eager" fails too, which is before Inductor.',)
        return RootCause("aot", AOT, "", rewrite.raised(result) or "other values", evidence)
    if ablation.fails(DECOMPOSED):
        evidence = ('backend="aot_eager" is right, backend="aot_eager_decomp_partition" fails.',)
        return RootCause(
            "aot", AOT, "decompositions or the partitioner", rewrite.raised(result) or "other values", evidence
        )
    base = cheapest(ablation, entry)
    before = 'backend="aot_eager_decomp_partition" is right.'
    if ablation.fails(PASSES):
        found = rewrite.cause(case, base, ablation.stages[PASSES], trials)
        shown = "Inductor's graph passes alone, the graph interpreted, show it."
    elif base == DYNAMIC and trials.fails(case, _SYMBOLIC):
        found = rewrite.cause(case, _SYMBOLIC, trials.judge(case, _SYMBOLIC), trials)
        shown = "Inductor's graph passes alone, the graph interpreted, show it where sizes are symbolic."
    elif trials.fails(case, base, Control("pattern_matcher_off")) is False:
        found = rewrite.cause(case, base, result, trials)
        shown = "Inductor's graph passes alone do not show it, and with the pattern matcher off it goes away."
    else:
        found = _below(entry, base, result, trials, bisection)
        shown = "Inductor's graph passes alone, the graph interpreted, are right."
        if ablation.accused == DYNAMIC and ablation.fails(INDUCTOR) is False:
            shown += " With sizes that are numbers it is right."
    return replace(found, evidence=(f"{before} {shown}", *found.evidence))


def _below(entry: Entry, base: str, result: SubjectResult, trials: Evaluator, bisection: Bisection | None) -> RootCause:
    """What is at fault below the graph passes: a lowering by the bisector's word, else what our own switches say."""
    how = rewrite.raised(result) or str(result.verdict).replace("_", " ")
    if bisection is not None and bisection.subsystem == "lowerings":
        return RootCause(
            "inductor",
            LOWERING,
            bisection.detail,
            how,
            ("The bisector finds it gone with that lowering left to eager.",),
        )
    if bisection is not None and bisection.backend == "inductor" and bisection.subsystem:
        return RootCause(
            "inductor", bisection.subsystem, bisection.detail, how, ("The bisector finds it gone with that left out.",)
        )
    # Every lowering that is left to eager breaks a fusion, so a single one is at fault only where no other mends it too.
    unfused = _mends(entry, base, Control("unfused"), trials)
    lowerings = _lowerings(entry, base, result, trials)
    if len(lowerings) == 1:
        told = f"It goes away with the lowering of {lowerings[0]} left to eager and all others on."
        return RootCause("inductor", LOWERING, lowerings[0], how, (told,))
    several = (
        (f"It goes away with the lowering of {' or of '.join(lowerings)} left to eager, too.",) if lowerings else ()
    )
    if unfused:
        return RootCause("inductor", CODEGEN, "fusion", how, (f"It goes away with {UNFUSED}.", *several))
    if _mends(entry, base, Control("unvectorized"), trials):
        return RootCause("inductor", CODEGEN, "vectorised code", how, (f"It goes away with {UNVECTORISED}.", *several))
    return RootCause(
        "inductor", CODEGEN, "", how, ("Neither with fusion nor with vectorisation off does it go away.", *several)
    )


def _mends(entry: Entry, base: str, switch: Control, trials: Evaluator) -> bool:
    return trials.fails(entry.case, base, switch) is False


def _lowerings(entry: Entry, base: str, result: SubjectResult, trials: Evaluator) -> list[str]:
    """The lowerings without which it passes, each on its own, by name: the first two."""
    names = [
        name.removeprefix("aten.")
        for kind_, _, name in (reached.partition(" ") for reached in result.reached)
        if kind_ == "lowering"
    ]
    mending = (name for name in dict.fromkeys(names) if _mends(entry, base, Control("eager", name), trials))
    return list(itertools.islice(mending, 2))


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = round(self.seconds.get(step, 0.0) + time.monotonic() - began, 2)
