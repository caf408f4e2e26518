"""One check: the source of a case in, a verdict on each subject out."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fuzz.check.attention_check import check_attention
from fuzz.check.judge.case_run import Announce, CaseRun, Rejected
from fuzz.check.judge.recheck import Compiled, explain_by_fused_rounding, explain_by_order, recheck
from fuzz.check.judge.verdict import (
    RECHECKED_VERDICTS,
    conclude,
    find_form_difference,
    find_stride_difference,
    is_same_for_dynamo,
    skip,
)
from fuzz.check.prove.fused_calls import find_refused_calls
from fuzz.check.prove.pattern_constants import compare_constants
from fuzz.check.prove.rewrite_match import MatchRecorder
from fuzz.check.prove.rewrite_proof import find_wrong_rewrite, judge_rewrite
from fuzz.check.run import value_files
from fuzz.check.run.attention.guard import GUARDED
from fuzz.check.run.live_program import LiveProgram
from fuzz.check.run.program import Execution, hash_values
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import Record, apply_experiments, enter
from fuzz.check.torch_api import compilation, exceptions, process_state, settings, warm_caches
from fuzz.check.torch_api.coverage import Coverage
from fuzz.check.torch_api.exceptions import SubjectError, SuppressOutOfMemory
from fuzz.check.torch_api.torch_places import find_raising
from fuzz.experiments import Outcome, Trial
from fuzz.protocol import (
    EAGER,
    Check,
    CoverageItem,
    CoverageKind,
    Live,
    Observation,
    Result,
    Running,
    SubjectResult,
    Verdict,
)
from fuzz.protocol.failures import DeviceError, FormDiffers, Refusal, StateChange, StateChanged
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.subjects import is_user_function


def check(
    request: Check,
    subjects: dict[str, Subject],
    device: str,
    announce: Announce,
    rss_mib: Callable[[], float],
    open_live: Callable[[Live], LiveProgram] | None = None,
) -> Result:
    """Run the case of `request` under every subject it names. An exception is a fault of attnfuzz.

    `announce` is called with the name of each stage before it starts, `rss_mib` once at the end, and `open_live` for
    `request.live`.
    """
    started = time.perf_counter()
    results: list[SubjectResult] = []
    rejected, unfit, stage = None, "", ""
    process_state.begin_case()
    value_files.use(request.values)
    try:
        request, program = _open(request, open_live)
        case = CaseRun(request, device, announce, program)
    except Rejected as refusal:
        rejected, stage, unfit = str(refusal), refusal.stage, _find_unfit(EAGER, ())
    else:
        for name in request.subjects:
            announce(name)
            result, changes = _run_subject(case, name, subjects.get(name))
            results.append(result)
            unfit = _find_unfit(name, changes)
            if unfit:
                break
        case.close()
    return Result(
        id=request.id,
        rejected=rejected,
        results=tuple(results),
        seconds=round(time.perf_counter() - started, 4),
        rss_mib=round(rss_mib(), 1),
        unfit=unfit,
        hashes=hash_values(case.eager) if request.hashes and rejected is None else (),
        stage=stage,
        unjudged=case.find_unjudged() if request.live is not None and rejected is None else (),
    )


def _open(request: Check, open_live: Callable[[Live], LiveProgram] | None) -> tuple[Check, LiveProgram | None]:
    """The request, and for a part of a user's module the program. Raises `Rejected`."""
    if request.live is None or open_live is None:
        return request, None
    try:
        program = open_live(request.live)
        return replace(request, training=program.is_training, random=program.is_random), program
    except Exception as error:
        raise Rejected(f"it can't be run as it is: {exceptions.line(error)}", "start") from error


def _find_unfit(subject: str, changes: tuple[StateChange, ...]) -> str:
    """Why the process must be replaced after `subject`; "" if it can go on."""
    for change in changes:
        if not change.is_restored:
            return f"{subject} changed {change.state}, which can't be put back"
    return f"its device is lost to {subject}" if exceptions.find_device_fault() else ""


def _run_subject(case: CaseRun, name: str, subject: Subject | None) -> tuple[SubjectResult, tuple[StateChange, ...]]:
    """The result of a subject, and its changes of the state of the process."""
    started = time.perf_counter()
    dynamo_same, hashes = None, tuple[str, ...]()
    coverage = Coverage()
    observed: list[Observation] = []

    def record(observation: Observation) -> None:
        if isinstance(observation, Running):
            case.announce(name, observation)
            observed[:] = (one for one in observed if not isinstance(one, Running))
        observed.append(observation)

    try:
        if subject is None:
            judgement = skip(Refusal.UNKNOWN_SUBJECT)
        else:
            options = case.request.settings if subject.spec.options else {}
            subject = apply_experiments(replace(subject, options=options), case.request.experiments, record)
            check_subject = check_attention if subject.attention is not None else _check_compiled
            if subject.spec.sharded:
                check_subject = functools.partial(_check_sharded, record)
            judgement, run = check_subject(case, subject, coverage)
            dynamo_same = None if run is None else is_same_for_dynamo(case.eager, run, case.exact)
            hashes = hash_values(run) if run is not None and case.request.hashes else ()
            if run is not None and judgement.verdict in RECHECKED_VERDICTS:
                observed += case.find_parting(run)
            if run is not None and judgement.verdict is Verdict.EAGER_SUSPECT:
                judgement = case.measure_beside_eager(judgement, run)
    except SubjectError as error:
        judgement = skip(Refusal.UNSUPPORTED, str(error))
    except Exception as error:
        judgement = conclude(*exceptions.blame(error))
        if judgement.verdict is not Verdict.DEVICE_ERROR:
            raise
    # A verdict of wrong numbers stays if a later call broke the device.
    keeps = judgement.verdict in (*RECHECKED_VERDICTS, Verdict.DEVICE_ERROR)
    if not keeps and (fault := exceptions.find_device_fault()):
        judgement = conclude(Verdict.DEVICE_ERROR, DeviceError(fault))
    changes, earlier = process_state.take_changes()
    # A change of state that can't be undone may have made a later call raise.
    is_cause = judgement.verdict is Verdict.RUNTIME_ERROR and not all(change.is_restored for change in earlier)
    is_kept = judgement.verdict.is_finding or judgement.verdict is Verdict.SKIPPED
    if changes and (is_cause or not is_kept):
        judgement = conclude(Verdict.STATE_CHANGED, StateChanged(changes), judgement.numbers)
    if not exceptions.find_device_fault():
        torch._dynamo.reset()
    result = replace(
        judgement,
        subject=name,
        applied_rewrites=tuple(sorted(coverage.applied_rewrites)),
        dynamo_same=dynamo_same,
        seconds=round(time.perf_counter() - started, 4),
        coverage=(*sorted(coverage.items), *_list_conditions(subject, judgement.verdict)),
        observations=tuple(observed),
        hashes=hashes,
    )
    return result, changes


def _list_conditions(subject: Subject | None, verdict: Verdict) -> list[CoverageItem]:
    """The settings that a subject ran under, and the kinds of memory that were not guarded."""
    if subject is None:
        return []
    ran_under = sorted(subject.options) if verdict is not Verdict.SKIPPED else []
    unguarded = [name for name in GUARDED if subject.attention and name not in subject.attention.guarded]
    settings = [CoverageItem(CoverageKind.SETTING, name) for name in ran_under]
    return [*(CoverageItem(CoverageKind.UNGUARDED, name) for name in unguarded), *settings]


def _check_compiled(case: CaseRun, subject: Subject, coverage: Coverage) -> tuple[SubjectResult, Execution | None]:
    """The verdict on a subject that computes the case as a whole, and its run, if that can be compared."""
    if subject.spec.random and (not case.request.random or case.program.is_sequence):
        return skip(Refusal.NOT_RANDOM), None
    if subject.spec.recomputes and not case.request.training:
        return skip(Refusal.NOT_TRAINING), None
    module, recorder = case.program.module(case.request.training), MatchRecorder()
    try:
        with coverage, recorder.watch(), subject.apply_settings():
            if subject.spec.warm:
                warm_caches.begin_artifacts()
                case.execute(case.compile(subject, module), module)
                warm_caches.reload(subject.caches)
            answers = warm_caches.count_answers()
            call = case.compile(subject, module)
            runs = [case.execute(call, module) for _ in range(case.repeat)]
            compilation.require_run()
    except SubjectError as error:
        return skip(error.refusal, str(error)), None
    except Exception as error:
        if limit := exceptions.find_limit(error):
            return skip(Refusal.UNSUPPORTED, limit), None
        judgement = _prove_constants(conclude(*exceptions.blame(error)), case, subject)
        wrong = (*find_refused_calls(judgement.failure, recorder.calls), *judgement.wrong_rewrites)
        return replace(judgement, wrong_rewrites=wrong, raised_at=find_raising(exceptions.find_root(error))), None
    coverage.items |= warm_caches.list_answers(answers) if subject.spec.warm else set()
    judgement = judge_compiled(case, subject, (call, module), runs)
    if judgement.verdict is Verdict.SKIPPED:
        return judgement, None
    if not judgement.verdict.is_finding:
        return judgement, runs[0]
    if judgement.verdict is not Verdict.EAGER_SUSPECT:
        judgement = _prove_rewrites(judgement, recorder)
    if judgement.right_rewrites and not judgement.wrong_rewrites:
        judgement = explain_by_fused_rounding(judgement, case, runs[0])
    return judgement, runs[0]


def _check_sharded(
    record: Record, case: CaseRun, subject: Subject, _: Coverage
) -> tuple[SubjectResult, Execution | None]:
    """The verdict on a case whose inputs are split over ranks, and its run, if that can be compared.

    Memory that results share, and their strides, are not compared: gathering a tensor copies it.
    """
    module, request = case.program.module(case.request.training), case.request
    reasons = {
        "no input is split over ranks": not getattr(module, "shards", {}),
        "DTensor draws other random numbers": request.random,
        "it has regions, for which DTensor has no rules": bool(request.plain),
    }
    if reason := next((reason for reason, applies in reasons.items() if applies), ""):
        return skip(Refusal.UNSUPPORTED, reason), None
    from fuzz.check.ranks import run_on_ranks
    from fuzz.check.sharded import Part

    cotangents, options = case.eager.cotangents, dict(subject.options)
    part = Part(request.source, subject.name, request.training, case.dynamic, cotangents, request.experiments, options)
    judgements = list[tuple[SubjectResult, Execution | None]]()
    for answer, taken in run_on_ranks(part):
        for steps in taken if not judgements else ():
            record(steps)
        if isinstance(answer, SubjectResult):
            return answer, None
        run = replace(answer, shared={})
        form = find_form_difference(case.eager, run)
        judgement = form and conclude(Verdict.METADATA, form)
        judgement = judgement or case.judge.judge_numbers(run, case.halve_sums)
        judgements.append((case.blame_eager_if_harmless(judgement), run))
    return next((judged for judged in judgements if judged[0].verdict.is_finding), judgements[0])


def judge_compiled(case: CaseRun, subject: Subject, compiled: Compiled, runs: list[Execution]) -> SubjectResult:
    """The verdict on `runs` of `compiled`."""
    judgement = case.judge_runs(runs)
    is_of_strides = isinstance(judgement.failure, FormDiffers) and judgement.failure.aspect == "strides"
    if is_of_strides and subject.spec.is_exported:
        # torch.export traces attention layers without eager's fast path, so strides are compared with a run off it.
        with enter(Trial("fast_path_off")):
            plain = case.execute()
        if find_stride_difference(plain, runs[0]) is None:
            judgement = conclude(Verdict.ROUNDING, None, judgement.numbers)
    judgement = case.blame_eager_if_harmless(judgement)
    if judgement.verdict in (Verdict.SKIPPED, Verdict.EAGER_SUSPECT):
        return judgement
    if judgement.verdict is Verdict.RANDOM_STREAM:
        # Right outputs under eager's random stream show that the dropout mask is eager's, so gradients are comparable.
        # Sequences never run with other seeds. On CUDA, eager's dropout draws in another order than Inductor's.
        draws_alike = not (subject.spec.random or is_user_function(subject.name))
        is_sequence = case.program.is_sequence
        if (draws_alike and judgement.judged is not None and judgement.judged.is_gradient) or (
            is_sequence and case.device == "cpu"
        ):
            return explain_by_order(case.make_judge(case.eager, random=False).judge(runs[0]), case, runs[0])
        if is_sequence:
            return judgement
    judgement = recheck(judgement, case, subject, compiled, runs[0])
    return _blame_unwritten(judgement, case, subject, compiled) if subject.options.get(settings.POISON) else judgement


def _blame_unwritten(judgement: SubjectResult, case: CaseRun, subject: Subject, compiled: Compiled) -> SubjectResult:
    """`judgement`, with `failure.unwritten` set if `compiled` is right with zeros in place of poison."""
    if judgement.failure is None or not judgement.verdict.is_finding:
        return judgement
    with apply_experiments(subject, [Trial("unpoisoned")]).apply_settings():
        run = case.execute(*compiled)
    if case.judge_runs([run]).verdict.is_finding:
        return judgement
    return replace(judgement, failure=replace(judgement.failure, unwritten=True))


def _prove_rewrites(judgement: SubjectResult, recorder: MatchRecorder) -> SubjectResult:
    """`judgement` with the rewrites that are proven wrong or right on the operands they took. First are those that call
    an operation that is wrong in eager too.

    If strides differ from eager's, a rewrite that changes strides counts as wrong.
    """
    is_of_strides = isinstance(judgement.failure, FormDiffers) and judgement.failure.aspect == "strides"
    wrong, called = list[WrongRewrite](), list[WrongRewrite]()
    right: list[str] = []
    with SuppressOutOfMemory():
        for found in recorder.matches():
            match, outcome, faulty = judge_rewrite(found, audits=judgement.verdict in RECHECKED_VERDICTS)
            if faulty is not None:
                called.append(WrongRewrite(match.pattern, faulty=faulty))
            if outcome.fails:
                wrong.append(find_wrong_rewrite(match))
            elif is_of_strides and match.changes_strides():
                wrong.append(WrongRewrite(match.pattern, strides=True))
            elif outcome is Outcome.PASSES:
                right.append(match.pattern)
    return replace(judgement, wrong_rewrites=(*called, *wrong), right_rewrites=tuple(right))


def _prove_constants(judgement: SubjectResult, case: CaseRun, subject: Subject) -> SubjectResult:
    """`judgement` on an error. If there is no error when patterns must match constants, the rewrites that are refused
    then are named as wrong."""
    refused: list[WrongRewrite] = []
    module = case.program.module(case.request.training)
    try:
        with compare_constants(refused.append), subject.apply_settings():
            case.execute(case.compile(subject, module), module)
    except Exception:
        return judgement
    return replace(judgement, wrong_rewrites=tuple({rewrite.pattern: rewrite for rewrite in refused}.values()))
