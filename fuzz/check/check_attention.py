"""Checks a subject that computes the attention of a case and leaves the rest of it alone."""

import functools
from dataclasses import replace

from fuzz.check import exceptions
from fuzz.check.attention import calls
from fuzz.check.attention.harness import AttentionHarness
from fuzz.check.case_run import CaseRun
from fuzz.check.coverage import Coverage
from fuzz.check.exceptions import SubjectError, SuppressOutOfMemory, Unsupported
from fuzz.check.oracle import constants, dynamo_same
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.noise import Noise
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import Execution, is_from_text
from fuzz.check.subject_builder import Subject
from fuzz.protocol import Verdict
from fuzz.protocol.failures import NotTaken, OutOfBounds, Refusal


def check_attention(case: CaseRun, subject: Subject, coverage: Coverage) -> tuple[Judgement, bool | None]:
    """The verdict on the attention function of `subject`, and what `torch._dynamo.utils.same` says of the case."""
    request = case.request
    if request.attention_stub is None or subject.attention is None:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT)), None
    try:
        with case.running:
            harness = AttentionHarness(
                request.attention_stub, subject.attention, case.device, training=request.training
            )
    except (SubjectError, Unsupported) as refusal:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal))), None
    except Exception as error:
        if not is_from_text(error):
            raise
        return _skip_text(error), None
    runs: list[Execution] = []
    try:
        judgement = _run_and_judge(case, subject, harness, runs, coverage)
        damage = harness.damage
    finally:
        harness.program.close()
    if judgement.verdict is Verdict.SKIPPED and not (damage or harness.differences):
        return judgement, None
    if harness.differences and not judgement.verdict.is_finding:
        judgement = Judgement(Verdict.WRONG_RESULT, harness.differences[0], judgement.numbers)
    if damage:
        if judgement.verdict.is_finding:
            judgement = replace(judgement, writes=damage)
        else:
            judgement = Judgement(Verdict.OUT_OF_BOUNDS, OutOfBounds(damage), judgement.numbers)
    if not runs:
        return judgement, None
    judgement = case.suspect_eager(judgement, runs[0], subject)
    return judgement, dynamo_same.same(case.eager, runs[0], case.exact)


def _run_and_judge(
    case: CaseRun, subject: Subject, harness: AttentionHarness, runs: list[Execution], coverage: Coverage
) -> Judgement:
    """The verdict on what a function gives; `runs` takes the executions."""
    recorded: list[Call] = []
    module = harness.module()
    try:
        with case.running, coverage:
            call = subject.compile(module, case.request.dynamic)
            for _ in range(max(1, case.request.repeat)):
                runs.append(case.execute(call, module, harness.fresh()))
                recorded = recorded or harness.calls
                if harness.damage:
                    break
    except Unsupported as refusal:
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal)))
    except NotImplementedError as error:  # in the backward pass
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NOT_IMPLEMENTED, exceptions.line(error)))
    except Exception as error:
        if not harness.accuses(error):
            return _skip_text(error)
        return Judgement(exceptions.verdict(error), exceptions.as_failure(error))
    if harness.attention.compiled:
        return case.judge_runs(runs, harness.dtypes, functools.partial(_run_uncompiled, case, harness))
    with SuppressOutOfMemory() as caught:
        judgement = calls.judge_calls(
            recorded, harness.function, training=case.request.training, again=not harness.damage
        )
        is_deterministic = case.device in harness.function.capabilities.deterministic
        return case.compare_runs(judgement, runs) if is_deterministic else judgement
    return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, caught.line))


def _skip_text(error: Exception) -> Judgement:
    return Judgement(Verdict.SKIPPED, NotTaken(Refusal.TEXT_FAILS, exceptions.line(error)))


def _run_uncompiled(case: CaseRun, harness: AttentionHarness) -> list[Execution]:
    """The case with the same function, not compiled, under noise."""
    if case.request.random:
        return []
    with harness.uncompiled() as program:
        return [
            case.execute(None, program.module(case.request.training), Noise(number))
            for number in range(constants.REPLICAS_BEFORE_WRONG)
        ]
