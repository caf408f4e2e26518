"""The numbers of a run directory, from its store and from its events."""

import json
from pathlib import Path

import pytest

from fuzz.campaign.session import run_campaign
from fuzz.events import CampaignEnded, CaseJudged, ForkRefused, SuspicionClosed, WorkerDied
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import FaultyOperation, Process, Value
from fuzz.run_store import Results
from fuzz.run_summary import Counts, FunctionSummary, RunRecorder, RunSummary
from generators.records import encode
from tests.campaign.fakes import case, options, sampler, setup


def judged(index: int, **verdicts: Verdict) -> CaseJudged:
    return CaseJudged(index=index, case=case("exp").id, worker=0, verdicts=verdicts, rejected=None)


def test_events_add_up() -> None:
    counts = Counts()
    for event in (
        judged(0, passes=Verdict.OK),
        judged(1, passes=Verdict.OK, triton=Verdict.SKIPPED),
        judged(2, triton=Verdict.SKIPPED),
        WorkerDied(worker=0, reason="timed out after 9 s", how=Process.TIMEOUT),
        ForkRefused(worker=0),
        WorkerDied(worker=0, reason="a fault of attnfuzz"),
        SuspicionClosed(suspicion=1, case="", outcome="finding", message="", probes=3),
        CampaignEnded(reason="budget spent"),
    ):
        counts.add(event, 1e9)
    assert counts.verdicts == {"passes": {Verdict.OK: 2}, "triton": {Verdict.SKIPPED: 2}}
    assert (counts.compared, counts.lost, counts.timeouts, counts.closed) == (2, 2, 1, 1)
    assert (counts.ended, counts.not_forked) == ("budget spent", 1)


def test_cases_coverage_and_suspicions_come_from_the_store(tmp_path: Path) -> None:
    results = Results(tmp_path)
    bmm = CoverageItem(CoverageKind.OP, "aten.bmm")
    results.record_case(case("exp"), position=(2, frozenset({3})), coverage=frozenset({bmm}))
    run = RunRecorder(results).summarize()
    results.close()
    assert (run.cases, run.coverage, run.waiting, run.findings) == (3, {bmm: 1}, 0, ())
    assert (run.state, RunSummary.load(tmp_path).state) == ("runs", "killed")


def test_counts_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.set_meta({"counts": json.dumps({"runs": 2, "cases": 9, "losses": {"timed out after N s": 1}})})
    results.close()
    counts = RunSummary.load(tmp_path).counts
    assert (counts.runs, counts.lost) == (2, 0)


MINE, OTHER = "my.kernels:attention", "my.kernels:other"


@pytest.mark.worker
@pytest.mark.parametrize(
    ("verdict", "of", "failures", "is_right"),
    [("eager_suspect", MINE, 0, True), ("wrong_result", OTHER, 0, True), ("wrong_result", MINE, 1, False)],
)
def test_a_function_is_right_whatever_is_wrong_beside_it(
    tmp_path: Path, verdict: str, of: str, failures: int, *, is_right: bool
) -> None:
    failure = encode(FaultyOperation("aten.softmax", 3.0, 0.2, Value("output", 1), 2.8))
    rule = {"match": "softmax", "verdict": verdict, "subjects": ["eager", of]}
    rule |= {"failure": failure} if verdict == "eager_suspect" else {}
    worker = setup(rules=[rule], subjects=[MINE, OTHER])
    given = options(tmp_path, "10x", subjects=(MINE, OTHER), worker_config=worker)
    summary = run_campaign(given, sampler("softmax")).summary
    run = RunSummary.load(given.out)
    assert run.functions[0] == FunctionSummary(MINE, cases=10, failures=failures, undecided=0)
    assert run.functions[0].is_right is is_right
    assert f"function {MINE}: {'no failure in 10' if is_right else '1 failure in 10'} cases" in " ".join(
        summary.split()
    )
