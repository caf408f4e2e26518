"""The verdict on eager: on its regions beside their plain text, and on its operations."""

import math
from contextlib import closing, nullcontext
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from fuzz.check.judge.case_run import CaseRun, Replicas
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.eager_audit import audit_eager
from fuzz.check.judge.licences import excuse
from fuzz.check.judge.verdict import Judge, conclude
from fuzz.check.run.program import Execution, Program
from fuzz.check.run.subject_builder import Subject
from fuzz.check.torch_api.compilation import TryApart
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory
from fuzz.protocol import EAGER, SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation

_verdicts = WeakKeyDictionary[CaseRun, SubjectResult]()


def blame_eager_if_harmless(judgement: SubjectResult, case: CaseRun) -> SubjectResult:
    """`judgement`, or the verdict on eager if `judgement` accuses nobody and eager is found wrong."""
    if judgement.verdict.is_finding or judgement.verdict is Verdict.SKIPPED:
        return judgement
    with SuppressOutOfMemory():
        if case not in _verdicts:
            _verdicts[case] = _judge_eager(case)
        return _verdicts[case] if _verdicts[case].verdict.is_finding else judgement
    return judgement


def measure_beside_eager(judgement: SubjectResult, case: CaseRun, run: Execution) -> SubjectResult:
    """`judgement` on eager, with the largest error of `run` in the same value: it may be right, or as wrong."""
    value = judgement.failure.value if isinstance(judgement.failure, FaultyOperation) else None
    given, truth = (one.values.get(value) if value is not None else None for one in (run, case.exact))
    if given is None or truth is None or given.shape != truth.shape:
        return judgement
    error = (given.double() - truth.double()).abs().nan_to_num(math.inf)
    return replace(judgement, numbers={**judgement.numbers, "compiled_error": float(error.max())})


def _judge_eager(case: CaseRun) -> SubjectResult:
    if case.plain is not case.program:
        judged = _judge_regions(case, case.eager, case.right)
        doubt = Doubt(judged, case.eager, case, Subject(EAGER), lambda run: _judge_regions(case, run, Replicas(case)))
        judged = excuse(doubt).judgement
        if judged.verdict.is_finding:
            return judged
    return _audit(case, case.plain, case.eager, case.exact) or conclude(Verdict.OK)


def _judge_regions(case: CaseRun, eager: Execution, replicas: Replicas) -> SubjectResult:
    """`eager_suspect` if the numbers of a run of eager's regions are wrong where those of the plain text are right."""
    right, truth = case.execute(mode=nullcontext()), replicas.exact
    judge = case.make_judge(right, random=False, right=replicas)
    judgement = judge.judge_numbers(eager)
    name = judgement.judged
    if not judgement.verdict.has_wrong_numbers or name is None:
        return conclude(Verdict.OK)
    if of_operation := _audit_regions(case, eager, truth):
        return of_operation
    found = [run.values.get(name) for run in (eager, truth, right)]
    missing = torch.zeros_like(next(value for value in found if value is not None))
    given, exact = ((missing if value is None else value).double() for value in found[:2])
    error = (given - exact).abs().nan_to_num(math.inf).masked_fill(given == exact, 0.0)  # inf - inf is NaN
    worst = int(error.argmax())
    mine, wanted, off = (float(values.flatten()[worst]) for values in (given, exact, error))
    needed = {kind for one in case.request.direct if _is_right(case, one.text, judge) for kind in one.kinds}
    named = [kind for kind in case.request.regions if kind in needed or not needed]
    fault = FaultyOperation(" and ".join(named), mine, wanted, name, off)
    return conclude(Verdict.EAGER_SUSPECT, fault, {**judgement.numbers, "eager_error": off}, name)


def _audit_regions(case: CaseRun, eager: Execution, truth: Execution) -> SubjectResult | None:
    """The verdict on an operation that is wrong in a region. None if there is none, or a region takes no mode."""
    with TryApart():  # Eager compiles cond and the like, and a mode must neither meet nor leave such code.
        return _audit(case, case.program, eager, truth)
    return None


def _audit(case: CaseRun, program: Program, eager: Execution, truth: Execution) -> SubjectResult | None:
    return audit_eager(eager, truth, lambda audit: case.execute(mode=audit, program=program), case.coarsest())


def _is_right(case: CaseRun, text: str, judge: Judge) -> bool:
    """Whether eager's numbers are right with another text of the case; False too if that text raises."""
    with closing(Program(text, case.device)) as program:
        try:
            given = case.execute(program=program)
        except Exception:
            return False
        return not judge.judge_numbers(given).verdict.has_wrong_numbers
