"""The verdict on a function that takes the place of a case's attention.

Backends of scaled_dot_product_attention also take the place of attention that is written out, as rewrites prove it.
"""

from dataclasses import replace

from fuzz.check.call_changes import measure_calls
from fuzz.check.judge.attention.judge_calls import find_faulty, judge_calls, observe
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.eager_verdict import blame_eager_if_harmless
from fuzz.check.judge.verdict import conclude, skip
from fuzz.check.prove.fused_calls import repeat_calls
from fuzz.check.prove.rewrite_match import MatchRecorder
from fuzz.check.run.attention.call import Call
from fuzz.check.run.attention.function import Attention, AttentionHarness
from fuzz.check.run.program import Execution
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api import exceptions
from fuzz.check.torch_api.coverage import Coverage
from fuzz.check.torch_api.exceptions import SubjectError, SuppressOutOfMemory
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FormDiffers, Nondeterministic, OutOfBounds, Refusal, Value
from fuzz.subjects import is_user_function


def check_attention(case: CaseRun, subject: Subject, coverage: Coverage) -> tuple[SubjectResult, Execution | None]:
    """The verdict on a subject that computes the attention of the case, and its run, if that can be compared."""
    stub, training = case.request.attention_stub, case.request.training
    if stub is None and subject.attention is not None and subject.spec.sdpa:
        return _judge_replaced(case, subject.attention, coverage), None
    if stub is None or subject.attention is None:
        return skip(Refusal.NO_CONTRACT), None
    harness = AttentionHarness(stub, subject.attention, case.device, training=training)
    runs: list[Execution] = []
    try:
        judgement = _run_and_judge(case, subject, harness, runs, coverage)
        damage = () if judgement.verdict is Verdict.DEVICE_ERROR else harness.guard.damage()
    finally:
        harness.program.close()
    if damage and judgement.verdict.is_finding:
        judgement = replace(judgement, writes=damage)
    elif damage:
        judgement = conclude(Verdict.OUT_OF_BOUNDS, OutOfBounds(damage), judgement.numbers)
    elif harness.shared and not judgement.verdict.is_finding and judgement.verdict is not Verdict.SKIPPED:
        shared = FormDiffers("memory", value=Value.of_result("out"), actual_owner=Value("result", harness.shared))
        judgement = conclude(Verdict.METADATA, shared, judgement.numbers)
    if harness.sequences:
        # The program's outputs are 0 for queries of no sequence, so they are not compared with eager's.
        failure = judgement.failure
        if failure is not None and not failure.sequences:
            judgement = replace(judgement, failure=replace(failure, sequences=harness.sequences))
        return judgement, None
    if not runs or judgement.verdict is Verdict.SKIPPED:
        return judgement, None
    return blame_eager_if_harmless(judgement, case), runs[0]


def _run_and_judge(
    case: CaseRun, subject: Subject, harness: AttentionHarness, runs: list[Execution], coverage: Coverage
) -> SubjectResult:
    """The verdict on the results of a function. Appends its executions to `runs`."""
    recorded: list[Call] = []
    module = harness.program.module(harness.training)
    try:
        with coverage, subject.apply_settings():
            for _ in range(case.repeat):
                runs.append(case.execute(module, module, harness.fresh()))
                recorded = recorded or harness.calls
                if harness.guard.damage():
                    break
    except SubjectError as refusal:
        return skip(Refusal.UNSUPPORTED, str(refusal))
    except Exception as error:
        if not harness.accuses(error):
            return skip(Refusal.TEXT_FAILS, exceptions.line(error))
        if in_backward := exceptions.find_refusal(error, harness.attention.capabilities.refuses):
            return skip(Refusal.UNSUPPORTED, str(in_backward))
        is_fit = not (exceptions.find_device_fault() or exceptions.is_out_of_memory(error) or harness.guard.damage())
        if is_fit and harness.runs_with_less_guarded(lambda: case.execute(module, module)):
            runs.clear()
            return _run_and_judge(case, subject, harness, runs, coverage)
        judgement = conclude(*exceptions.blame(error))
        if judgement.verdict is Verdict.RUNTIME_ERROR:
            with SuppressOutOfMemory():
                judgement = measure_calls(judgement, harness.attention, harness.calls)
        return judgement
    with SuppressOutOfMemory() as caught:
        judgement = judge_calls(recorded, harness.attention, training=case.request.training)
        if judgement.verdict.has_wrong_numbers and not harness.guard.damage():
            faulty = find_faulty(harness.attention, recorded) if is_user_function(subject.name) else None
            if faulty is not None:
                gives = f"gives {faulty.given:.3g} where {faulty.exact:.3g} is right"
                return skip(Refusal.UNSUPPORTED, f"it calls {faulty.operation}, which {gives}")
            judgement = measure_calls(judgement, harness.attention, recorded)
        repeats = case.device in harness.attention.capabilities.deterministic and not harness.attention.is_unordered
        compared = case.compare_runs(judgement, runs) if repeats else judgement
        is_of_gradient = isinstance(compared.failure, Nondeterministic) and compared.failure.value.is_gradient
        observed = is_of_gradient and observe(harness.attention, recorded)
        return judgement if observed and harness.attention.is_unordered else compared
    return skip(Refusal.NO_MEMORY, caught.line)


def _judge_replaced(case: CaseRun, attention: Attention, coverage: Coverage) -> SubjectResult:
    """The verdict on the fused calls that Inductor's rewrites make of the case, on the operands that they take.

    Skipped if no rewrite applies, or none that is right: the case then has no contract. Raises `SubjectError`.
    """
    recorder, training = MatchRecorder(), case.request.training
    try:
        with coverage, recorder.watch():
            case.run_anew(find("passes"))
    except Exception as error:
        if exceptions.find_device_fault():
            raise
        return skip(Refusal.NO_CONTRACT, exceptions.line(error))
    with SuppressOutOfMemory() as caught:
        calls = repeat_calls(recorder.matches(), attention, training=training)
        if not calls:
            return skip(Refusal.NO_CONTRACT)
        judgement = judge_calls(calls, attention, training=training)
        return measure_calls(judgement, attention, calls) if judgement.verdict.has_wrong_numbers else judgement
    return skip(Refusal.NO_MEMORY, caught.line)
