"""One check: the source of a case in, a verdict on each subject out."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fuzz.check.attention_check import check_attention
from fuzz.check.judge.case_run import Announce, CaseRun, Rejected
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.dropout_seeds import Compiled
from fuzz.check.judge.eager_verdict import blame_eager_if_harmless, measure_beside_eager
from fuzz.check.judge.licences import excuse
from fuzz.check.judge.promises import find_unpromised, keep_promised
from fuzz.check.judge.verdict import conclude, find_form_difference, is_same_for_dynamo, skip
from fuzz.check.prove.fused_calls import find_refused_calls
from fuzz.check.prove.pattern_constants import prove_constants
from fuzz.check.prove.rewrite_match import MatchRecorder
from fuzz.check.prove.rewrite_proof import RewriteProof
from fuzz.check.run import compiled_module, value_files
from fuzz.check.run.attention.guard import GUARDED
from fuzz.check.run.live_program import LiveProgram
from fuzz.check.run.program import Execution, hash_values
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import Record, apply_experiments
from fuzz.check.torch_api import compilation, exceptions, kernel_builds, process_state, settings, warm_caches
from fuzz.check.torch_api.coverage import Coverage
from fuzz.check.torch_api.exceptions import SubjectError, SuppressOutOfMemory
from fuzz.check.torch_api.torch_places import find_raising
from fuzz.experiments import Trial
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
from fuzz.protocol.failures import DeviceError, Refusal, StateChange, StateChanged


def check(
    request: Check,
    subjects: dict[str, Subject],
    device: str,
    announce: Announce = lambda *_: None,
    open_live: Callable[[Live], LiveProgram] | None = None,
) -> Result:
    """Run the case of `request` under every subject it names. An exception is a fault of attnfuzz.

    `announce` is called with the name of each stage before it starts, and `open_live` for `request.live`.
    """
    started = time.perf_counter()
    results: list[SubjectResult] = []
    rejected, unfit, stage = None, "", ""
    process_state.begin_case()
    value_files.use(request.values)
    compiled_module.begin_case()
    try:
        request, program = _open(request, open_live)
        case = CaseRun(request, device, announce, program)
    except Rejected as refusal:
        rejected, stage, unfit = str(refusal), refusal.stage, _find_unfit(EAGER, ())
    else:
        with kernel_builds.join(request.joins_kernels):
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
    coverage, observed = Coverage(), list[Observation]()

    def record(observation: Observation) -> None:
        if isinstance(observation, Running):
            case.announce(name, observation)
            observed[:] = (one for one in observed if not isinstance(one, Running))
        observed.append(observation)

    if subject is not None and subject.spec.options:
        subject = replace(subject, options=case.request.settings)
    try:
        judged = skip(Refusal.UNKNOWN_SUBJECT) if subject is None else _judge_subject(case, subject, coverage, record)
    except SubjectError as error:
        judged = skip(Refusal.UNSUPPORTED, str(error))
    except Exception as error:
        judged = conclude(*exceptions.blame(error))
        if judged.verdict is not Verdict.DEVICE_ERROR:
            raise
    left, changes = _blame_process(judged)
    if not exceptions.find_device_fault():
        torch._dynamo.reset()
    result = replace(
        left,
        subject=name,
        applied_rewrites=tuple(sorted(coverage.applied_rewrites)),
        dynamo_same=judged.dynamo_same,
        seconds=round(time.perf_counter() - started, 4),
        coverage=(*sorted(coverage.items), *_list_conditions(subject, left.verdict)),
        observations=tuple(observed),
        hashes=judged.hashes,
    )
    return result, changes


def _judge_subject(case: CaseRun, subject: Subject, coverage: Coverage, record: Record) -> SubjectResult:
    """The verdict on a subject under the experiments of the request, and what its run shows."""
    subject = apply_experiments(subject, case.request.experiments, record)
    if subject.attention is not None:
        judgement, run = check_attention(case, subject, coverage)
    elif unpromised := find_unpromised(case, subject):
        return skip(*unpromised)
    elif subject.spec.sharded:
        judgement, run = _check_sharded(case, subject, record)
    else:
        judgement, run = _check_compiled(case, subject, coverage)
    if run is None:
        return judgement
    same = is_same_for_dynamo(case.eager, run, case.exact)
    hashes = hash_values(run) if case.request.hashes else ()
    for parted in case.find_parting(run) if judgement.verdict.has_wrong_numbers else ():
        record(parted)
    if judgement.verdict is Verdict.EAGER_SUSPECT:
        judgement = measure_beside_eager(judgement, case, run)
    return replace(judgement, dynamo_same=same, hashes=hashes)


def _blame_process(judgement: SubjectResult) -> tuple[SubjectResult, tuple[StateChange, ...]]:
    """The judgement after a look at the process, and the changes of its state.

    judgement       the device is lost   the state has changed
    wrong numbers   stays                stays
    device_error    stays                stays
    runtime_error   device_error         state_changed, if an earlier change can't be undone: a later call may raise
    other finding   device_error         stays
    skipped         device_error         stays
    harmless        device_error         state_changed
    """
    if not judgement.verdict.has_wrong_numbers and judgement.verdict is not Verdict.DEVICE_ERROR:
        fault = exceptions.find_device_fault()
        judgement = conclude(Verdict.DEVICE_ERROR, DeviceError(fault)) if fault else judgement
    changes, earlier = process_state.take_changes()
    is_harmless = not judgement.verdict.is_finding and judgement.verdict is not Verdict.SKIPPED
    may_follow = judgement.verdict is Verdict.RUNTIME_ERROR and not all(change.is_restored for change in earlier)
    if changes and (is_harmless or may_follow):
        judgement = conclude(Verdict.STATE_CHANGED, StateChanged(changes), judgement.numbers)
    return judgement, changes


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
    module, recorder = case.program.module(case.request.training), MatchRecorder()
    try:
        with coverage, recorder.watch(), subject.apply_settings():
            if subject.spec.warm:
                warm_caches.refill(subject.caches, lambda: case.execute(case.compile(subject, module), module))
            answers = warm_caches.count_answers()
            call = case.compile(subject, module)
            runs = [case.execute(call, module) for _ in range(case.repeat)]
            compilation.require_run()
        if subject.compiler is not None:
            runs = [keep_promised(run, case.eager, subject.compiler.capabilities) for run in runs]
    except SubjectError as error:
        return skip(error.refusal, str(error), error.operator), None
    except Exception as error:
        if limit := exceptions.find_limit(error):
            return skip(Refusal.UNSUPPORTED, limit), None
        judgement = prove_constants(conclude(*exceptions.blame(error)), case, subject)
        wrong = (*find_refused_calls(judgement.failure, recorder.calls), *judgement.wrong_rewrites)
        return replace(judgement, wrong_rewrites=wrong, raised_at=find_raising(exceptions.find_root(error))), None
    coverage.items |= warm_caches.list_answers(answers) if subject.spec.warm else set()
    judgement = judge_compiled(case, subject, (call, module), runs, RewriteProof(recorder))
    return judgement, None if judgement.verdict is Verdict.SKIPPED else runs[0]


def _check_sharded(case: CaseRun, subject: Subject, record: Record) -> tuple[SubjectResult, Execution | None]:
    """The verdict on a case whose inputs are split over ranks, and its run, if that can be compared.

    Memory that results share, and their strides, are not compared: gathering a tensor copies it.
    """
    from fuzz.check.run.ranks import run_on_ranks
    from fuzz.check.run.sharded import RankProgram, find_mesh

    mesh, options = find_mesh(case.shards), dict(subject.options)
    part = RankProgram(case.request, subject.name, case.dynamic, case.eager.cotangents, options, mesh)
    judgements = list[tuple[SubjectResult, Execution | None]]()
    for answer, taken in run_on_ranks(part):
        for steps in taken if not judgements else ():
            record(steps)
        if isinstance(answer, SubjectResult):
            return answer, None
        run = replace(answer, shared={})
        form = find_form_difference(case.eager, run)
        judgement = conclude(Verdict.METADATA, form) if form else case.judge.judge_numbers(run)
        excused = excuse(Doubt(judgement, run, case, subject, case.judge.judge_numbers)).judgement
        judgements.append((blame_eager_if_harmless(excused, case), run))
    return next((judged for judged in judgements if judged[0].verdict.is_finding), judgements[0])


def judge_compiled(
    case: CaseRun,
    subject: Subject,
    compiled: Compiled,
    runs: list[Execution],
    prove: Callable[[SubjectResult], SubjectResult] = lambda judgement: judgement,
) -> SubjectResult:
    """The verdict on `runs` of `compiled`. prove: as `Doubt.prove`."""
    judgement = blame_eager_if_harmless(case.judge_runs(runs), case)
    if judgement.verdict in (Verdict.SKIPPED, Verdict.EAGER_SUSPECT):
        return judgement
    is_of_form = judgement.verdict is Verdict.METADATA
    doubt = Doubt(judgement, runs[0], case, subject, case.judge.judge, compiled, prove)
    with SuppressOutOfMemory():
        doubt = excuse(doubt)
    # Strides are compared last: if they are excused, the values accuse nobody.
    judgement = blame_eager_if_harmless(doubt.judgement, case) if is_of_form else doubt.judgement
    if not judgement.verdict.is_finding or judgement.verdict is Verdict.EAGER_SUSPECT:
        return judgement
    return prove(_blame_unwritten(judgement, doubt) if subject.options.get(settings.POISON) else judgement)


def _blame_unwritten(judgement: SubjectResult, doubt: Doubt) -> SubjectResult:
    """`judgement`, with `failure.unwritten` set if the same code is right with zeros in place of poison."""
    if judgement.failure is None or doubt.compiled is None:
        return judgement
    with apply_experiments(doubt.subject, [Trial("unpoisoned")]).apply_settings():
        run = doubt.case.execute(*doubt.compiled)
    with SuppressOutOfMemory():
        is_wrong = doubt.judge(run).verdict.is_finding
        return judgement if is_wrong else replace(judgement, failure=replace(judgement.failure, unwritten=True))
    return judgement
