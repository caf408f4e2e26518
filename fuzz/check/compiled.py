"""The check of a subject that computes a case as a whole: what it gave, and where one run is not enough to tell."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fuzz.check import failures, settings
from fuzz.check.attention.bare import Bare
from fuzz.check.coverage import Fired, attention_patterns
from fuzz.check.oracle import agreement, constants
from fuzz.check.oracle.attention.judge import judge as judge_call
from fuzz.check.oracle.decide import DOUBTED, Judge, Judgement
from fuzz.check.program import Execution
from fuzz.check.subjects import Subject, SubjectError
from fuzz.protocol import Verdict

if TYPE_CHECKING:
    from fuzz.check.check import Case

FUSED_ROUNDS = ("weights", "sums")
"""What the fused calls of rewrites round: flash on CPU rounds most."""


def compiled(case: "Case", subject: Subject, fired: Fired) -> tuple[Judgement, bool | None]:
    """The verdict on `subject`, and what `torch._dynamo.utils.same` says."""
    module = case.program.module(case.request.training)
    try:
        with fired, settings.tf32_allowed() if subject.tf32 else nullcontext():
            call = subject.compile(module, case.request.dynamic)
            runs = [case.execute(call, module) for _ in range(max(1, case.request.repeat))]
    except SubjectError as error:
        return Judgement(Verdict.SKIPPED, str(error)), None
    except Exception as error:
        return Judgement(failures.verdict(error), failures.line(error)), None
    judgement = case.unless_eager_is_wrong(case.decided(runs), runs[0])
    if judgement.verdict in (Verdict.SKIPPED, Verdict.EAGER_SUSPECT):
        return judgement, None
    try:
        if judgement.verdict in DOUBTED:
            judgement = _excused(case, judgement, subject, runs[0])
        elif not judgement.verdict.is_finding and attention_patterns(fired.names):
            judgement = _fused(case, runs[0]) or judgement
    except Exception as error:
        if failures.verdict(error) is not Verdict.OUT_OF_MEMORY:
            raise
    return judgement, agreement.same(case.eager, runs[0], case.exact)


def _excused(case: "Case", judgement: Judgement, subject: Subject, run: Execution) -> Judgement:
    """`judgement`, or that what `subject` may round by design explains it: found out by running, never guessed."""
    judge = case.judge
    if subject.tf32:
        with settings.tf32_allowed():
            judge = _judge_in_tf32(case)
            if not judge.judge(run).verdict.is_finding:
                return _by_design(judgement, "TF32, which is allowed here, explains it")
    # Without low precision the setting changes nothing on CPU; on CUDA it decides over fused multiply-adds too.
    low = case.coarsest() in constants.LOW_PRECISION or case.device != "cpu"
    if low and subject.kind.inductor and settings.can_keep_casts():
        with settings.casts_kept():
            kept = _again(case, subject, judge)
        # A subject that is right at times only has to be seen wrong again before the casts are the reason.
        if kept is False and _again(case, subject, judge):
            return _by_design(judgement, "gone with emulate_precision_casts=True")
    return judgement


def _again(case: "Case", subject: Subject, judge: Judge) -> bool | None:
    """Whether `subject`, compiled and run once more, is a finding still; None when it does not run."""
    module = case.program.module(case.request.training)
    torch._dynamo.reset()
    with settings.tf32_allowed() if subject.tf32 else nullcontext():
        try:
            run = case.execute(subject.compile(module, case.request.dynamic), module)
        except Exception:
            return None
        return judge.judge(run).verdict.is_finding


def _judge_in_tf32(case: "Case") -> Judge:
    """A judge by what eager gives while TF32 is allowed; to be made and asked while it is."""
    unit = constants.UNIT_ROUNDOFF
    return Judge(
        case.execute(),
        case.exact,
        case.replica,
        lambda: max(case.coarsest(), constants.TF32_LIKE, key=lambda dtype: unit[dtype]),
        random=case.request.random,
    )


def _by_design(judgement: Judgement, reason: str) -> Judgement:
    return replace(judgement, verdict=Verdict.PRECISION_POLICY, message=f"{judgement.message}; {reason}", where={})


def _fused(case: "Case", run: Execution) -> Judgement | None:
    """What is wrong with the attention of a program that a rewrite made a fused call of: eager in low precision is less
    accurate than that, and what it allows would hide much. None where nothing is, or the case is not bare."""
    request = case.request
    if request.random or request.stand_in is None:
        return None
    call = Bare(request.stand_in, case.device, training=request.training).call(run, case.eager.cotangents)
    if call is None:
        return None
    # A program that takes the scale to q, or its root to q and to k, rounds there, unless it is a power of 4.
    root = math.log2(abs(call.options["scale"]) or 1.0) / 2
    judgement = judge_call(call, FUSED_ROUNDS if root.is_integer() else (*FUSED_ROUNDS, "scores"))
    return judgement if judgement.verdict.is_finding else None
