"""Checks a subject that computes a case as a whole."""

import math

import torch

from fuzz.check import exceptions
from fuzz.check.attention.pure_attention import PureAttention
from fuzz.check.case_run import CaseRun
from fuzz.check.coverage import Coverage, attention_patterns
from fuzz.check.exceptions import SubjectError, SuppressOutOfMemory
from fuzz.check.oracle import dynamo_same
from fuzz.check.oracle.attention.judge import judge as judge_call
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import Execution
from fuzz.check.recheck import apply_precision_policy, recheck
from fuzz.check.subject_builder import Subject
from fuzz.protocol import Verdict
from fuzz.protocol.failures import NotTaken, Refusal

FUSED_ROUNDS = ("weights", "sums", "exponentials")
"""What the fused calls of rewrites round: flash on CPU rounds most."""


def check_compiled(case: CaseRun, subject: Subject, coverage: Coverage) -> tuple[Judgement, bool | None]:
    """The verdict on `subject`, and what `torch._dynamo.utils.same` says."""
    if subject.spec.random and not case.request.random:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NOT_RANDOM)), None
    module = case.program.module(case.request.training)
    try:
        with case.running, coverage, subject.allowed():
            call = subject.compile(module, case.request.dynamic)
            runs = [case.execute(call, module) for _ in range(max(1, case.request.repeat))]
    except SubjectError as error:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(error))), None
    except Exception as error:
        return Judgement(exceptions.verdict(error), exceptions.as_failure(error)), None
    judgement = case.suspect_eager(case.judge_runs(runs), runs[0], subject)
    if judgement.verdict is Verdict.SKIPPED:
        return judgement, None
    if judgement.verdict is Verdict.EAGER_SUSPECT:
        return judgement, dynamo_same.same(case.eager, runs[0], case.exact)
    judgement = recheck(judgement, case, subject, (call, module), runs[0])
    if not judgement.verdict.is_finding and attention_patterns(coverage.fired):
        judgement = _judge_fused_call(case, subject, runs[0]) or judgement
    return judgement, dynamo_same.same(case.eager, runs[0], case.exact)


def _judge_fused_call(case: CaseRun, subject: Subject, run: Execution) -> Judgement | None:
    """What is wrong with a case that is one attention, which a rewrite made a fused call; None for nothing.

    Eager in low precision is less accurate than a fused call, so that its tolerance would hide much.
    """
    request = case.request
    if request.random or request.attention_stub is None:
        return None
    with SuppressOutOfMemory():
        pure = PureAttention(request.attention_stub, case.device, training=request.training)
        judgement = _judge_as_call(pure, case, subject, run)
        if judgement is None:
            return None
        return apply_precision_policy(
            judgement, case, subject, lambda again: _judge_as_call(pure, case, subject, again) is not None
        )
    return None


def _judge_as_call(pure: PureAttention, case: CaseRun, subject: Subject, run: Execution) -> Judgement | None:
    """What is wrong with `run` as a call of an attention function."""
    call = pure.call(run, case.eager.cotangents)
    if call is None or (subject.tf32 and call.q.dtype == torch.float32):
        return None
    # A program that takes the scale to q, or its root to q and to k, rounds there, unless it is a power of 4.
    root = math.log2(abs(call.options["scale"]) or 1.0) / 2
    judgement = judge_call(call, FUSED_ROUNDS if root.is_integer() else (*FUSED_ROUNDS, "scores"))
    return judgement if judgement.verdict.is_finding else None
