"""The numbers of a run directory, from its store and from its events."""

import json
from pathlib import Path

from fuzz.events import CampaignEnded, CaseJudged, ForkRefused, SuspicionClosed, WorkerDied
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import Process
from fuzz.run_store import Results
from fuzz.run_summary import Counts, Recorder, RunSummary
from tests.campaign.fakes import case


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
    run = Recorder(results).summarize()
    results.close()
    assert (run.cases, run.coverage, run.waiting, run.findings) == (3, {bmm: 1}, 0, ())
    assert (run.state, RunSummary.load(tmp_path).state) == ("runs", "killed")


def test_counts_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.set_meta({"counts": json.dumps({"runs": 2, "cases": 9, "losses": {"timed out after N s": 1}})})
    results.close()
    counts = RunSummary.load(tmp_path).counts
    assert (counts.runs, counts.lost) == (2, 0)
