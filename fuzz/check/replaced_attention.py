"""Backends of scaled_dot_product_attention on cases whose attention is written out, by what rewrites prove it to be."""

from fuzz.check import exceptions
from fuzz.check.attention.call_changes import measure_calls
from fuzz.check.attention.function import Attention
from fuzz.check.attention.judge_calls import judge_calls
from fuzz.check.case_run import CaseRun
from fuzz.check.coverage import Coverage
from fuzz.check.exceptions import SuppressOutOfMemory, Unsupported
from fuzz.check.fused_calls import repeat_calls
from fuzz.check.oracle.verdict import RECHECKED_VERDICTS, Judgement
from fuzz.check.rewrite_match import MatchRecorder
from fuzz.check.subject_builder import find
from fuzz.protocol import Verdict
from fuzz.protocol.failures import NotTaken, Refusal

_PASSES = "passes"


def judge_replaced(case: CaseRun, attention: Attention, coverage: Coverage) -> Judgement:
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
        return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT, exceptions.line(error)))
    with SuppressOutOfMemory() as caught:
        try:
            calls = repeat_calls(recorder.matches(), attention, training=training)
        except Unsupported as refusal:
            return Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNSUPPORTED, str(refusal)))
        if not calls:
            return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_CONTRACT))
        judgement = judge_calls(calls, attention, training=training)
        return measure_calls(judgement, attention, calls) if judgement.verdict in RECHECKED_VERDICTS else judgement
    return Judgement(Verdict.SKIPPED, NotTaken(Refusal.NO_MEMORY, caught.line))
