"""One check: a case's source in, a verdict per subject out."""

import time
from collections.abc import Callable

from fuzz.check import settings
from fuzz.check.case_run import Announce, CaseRun, Clock, Rejected
from fuzz.check.check_attention import check_attention
from fuzz.check.check_compiled import check_compiled
from fuzz.check.controls import ControlError, apply_controls
from fuzz.check.coverage import Coverage
from fuzz.check.exceptions import SuppressOutOfMemory
from fuzz.check.oracle.verdict import Judgement
from fuzz.check.program import is_device_lost
from fuzz.check.subject_builder import Subject
from fuzz.protocol import Check, ErrorMap, Result, SubjectResult, Verdict
from fuzz.protocol.controls import Observation
from fuzz.protocol.failures import NotTaken, Refusal


def check(
    request: Check, subjects: dict[str, Subject], device: str, announce: Announce, rss_mib: Callable[[], float]
) -> Result:
    """Run the case of `request` under every subject it names.

    `announce` is called with the name of each stage before it starts, `rss_mib` once at the end. Whatever the case
    does is in the result; only our own faults raise.
    """
    started = time.perf_counter()
    clock, running = Clock(), Clock()
    results: list[SubjectResult] = []
    rejected = None
    try:
        case = CaseRun(request, device, announce, clock, running)
    except Rejected as refusal:
        rejected = str(refusal)
    else:
        for name in request.subjects:
            announce(name)
            results.append(_run_subject(case, name, subjects.get(name)))
            if is_device_lost(device):
                break
        case.program.close()
    return Result(
        id=request.id,
        rejected=rejected,
        results=tuple(results),
        seconds=round(time.perf_counter() - started, 4),
        torch_seconds=round(clock.seconds, 4),
        rss_mib=round(rss_mib(), 1),
        oracle_seconds=round(max(0.0, clock.seconds - running.seconds), 4),
        device_lost=is_device_lost(device),
    )


def _run_subject(case: CaseRun, name: str, subject: Subject | None) -> SubjectResult:
    """Compile and run one subject; everything it does wrong is in the result."""
    started = time.perf_counter()
    same = None
    coverage = Coverage()
    observed: list[Observation] = []
    with case.clock:
        try:
            if subject is None:
                judgement = Judgement(Verdict.SKIPPED, NotTaken(Refusal.UNKNOWN_SUBJECT))
            else:
                subject = apply_controls(subject, case.request.controls, observed.append)
                check_subject = check_attention if subject.attention is not None else check_compiled
                judgement, same = check_subject(case, subject, coverage)
        except ControlError as error:
            judgement = Judgement(Verdict.SKIPPED, NotTaken(Refusal.CONTROL, str(error)))
        with case.running:
            settings.reset_caches()
    return SubjectResult(
        subject=name,
        verdict=judgement.verdict,
        numbers=judgement.numbers,
        fired=coverage.fired,
        same=same,
        seconds=round(time.perf_counter() - started, 4),
        where=judgement.where,
        reached=coverage.reached,
        map=_map_errors(judgement) if case.request.with_error_map else None,
        failure=judgement.failure,
        excuse=judgement.excuse,
        writes=judgement.writes,
        observations=tuple(dict.fromkeys(observed)),
    )


def _map_errors(judgement: Judgement) -> ErrorMap | None:
    """How far the value that `judgement` calls wrong is off; None where it calls none wrong."""
    with SuppressOutOfMemory():
        return judgement.map() if judgement.where else None
    return None
