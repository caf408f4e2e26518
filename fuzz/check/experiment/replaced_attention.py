"""Backends of scaled_dot_product_attention on cases whose attention is written out, by what rewrites prove it to be."""

from fuzz.check.experiment.call_changes import measure_calls
from fuzz.check.judge.attention.judge_calls import judge_calls
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.verdict import RECHECKED_VERDICTS, conclude
from fuzz.check.prove.fused_calls import repeat_calls
from fuzz.check.prove.rewrite_match import MatchRecorder
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import exceptions
from fuzz.check.torch_api.coverage import Coverage
from fuzz.check.torch_api.exceptions import SuppressOutOfMemory, Unsupported
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Refusal

_PASSES = "passes"


def judge_replaced(case: CaseRun, attention: Attention, coverage: Coverage) -> SubjectResult:
    """The verdict on the fused calls that Inductor's rewrites make of the case, on the operands that they take.

    Skipped if no rewrite applies, or none that is right: the case then has no contract.
    """
    recorder, passes, training = MatchRecorder(), find(_PASSES), case.request.training
    module = case.program.module(training)
    try:
        with coverage, recorder.watch(), passes.apply_settings():
            case.execute(passes.compile(module, case.dynamic), module)
    except Exception as error:
        if exceptions.find_device_fault():
            raise
        return conclude(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT, exceptions.line(error)))
    with SuppressOutOfMemory() as caught:
        try:
            calls = repeat_calls(recorder.matches(), attention, training=training)
        except Unsupported as refusal:
            return conclude(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal)))
        if not calls:
            return conclude(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT))
        judgement = judge_calls(calls, attention, training=training)
        return measure_calls(judgement, attention, calls) if judgement.verdict in RECHECKED_VERDICTS else judgement
    return conclude(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, caught.line))
