"""Campaigns that share a directory: what one finds the others know, and files of strangers stop nobody."""

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus.entry import SUFFIX, Entry, Found
from fuzz.bug_identity import Signature
from fuzz.campaign.known_bugs import KnownBugs
from fuzz.campaign.options import Options
from fuzz.campaign.session import run_campaign
from fuzz.campaign.share import FINDINGS, QUEUE
from fuzz.campaign.suspicion_queue import SuspicionQueue
from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import FindingRow, Results
from generators.program.case import Case
from tests.campaign.fakes import case, options, sampler

WRONG = {
    "match": "softmax",
    "verdict": "wrong_result",
    "applied_rewrites": ["_sfdp_pattern_5_inference"],
    "dynamo_same": False,
    "subjects": ["passes", "inductor"],
    "unless": ["pattern_matcher_off"],
}
PATTERN = {"match": "softmax", "applied_rewrites": ["mul_softmax_pattern"]}


def campaign(tmp_path: Path, name: str, budget: str = "20x", **given: Any) -> Options:
    return options(tmp_path / name, budget, share=tmp_path / "shared", **given)


def events(given: Options, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (given.out / "events.ndjson").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def read_store(given: Options) -> tuple[list[FindingRow], list[Case]]:
    results = Results(given.out)
    try:
        return results.findings(), [queued for queued, _ in results.queue()]
    finally:
        results.close()


@pytest.mark.worker
def test_what_one_campaign_finds_is_known_to_the_other(tmp_path: Path) -> None:
    first, second = (campaign(tmp_path, name, rules=[WRONG]) for name in ("first", "second"))
    assert run_campaign(first, sampler("softmax")).new == 1
    assert run_campaign(second, sampler("softmax")).new == 0
    ((row,), _) = read_store(second)
    assert (row.kind, row.count) == ("known", 10)
    assert Path(row.file).parent == tmp_path / "shared" / FINDINGS
    assert not events(second, "SuspicionClosed")
    assert not list(second.corpus.glob("*"))


@pytest.mark.worker
def test_what_reached_something_new_is_judged_by_the_others_once(tmp_path: Path) -> None:
    first = campaign(tmp_path, "first", rules=[PATTERN], engine="guided")
    run_campaign(first, sampler("softmax"))
    (_, (queued,)) = read_store(first)
    corpus_entry.write(Entry(case("exp")), tmp_path / "shared" / QUEUE / f"zz{SUFFIX}")
    second = campaign(tmp_path, "second", rules=[PATTERN], engine="guided")
    for _ in range(2):
        run_campaign(second, sampler())
    assert queued in read_store(second)[1]
    judged = [event["case"] for event in events(second, "CaseJudged")]
    assert [judged.count(one) for one in (queued.id, case("exp").id)] == [1, 1]


@pytest.mark.worker
def test_files_that_hold_no_such_case_are_skipped(tmp_path: Path) -> None:
    given = campaign(tmp_path, "first", rules=[PATTERN], engine="guided")
    for kind in (QUEUE, FINDINGS):
        directory = tmp_path / "shared" / kind
        (directory / f"folder{SUFFIX}").mkdir(parents=True)
        (directory / f"gone{SUFFIX}").symlink_to(tmp_path / "gone")
        (directory / f"endless{SUFFIX}").symlink_to("/dev/zero")
        (directory / f"empty{SUFFIX}").touch()
        (directory / f"binary{SUFFIX}").write_bytes(bytes(range(256)))
        (directory / f"half{SUFFIX}").write_text(corpus_entry.dumps(Entry(case("exp")))[:40])
        (directory / f".unfinished{SUFFIX}").touch()
    other = Found("wrong_result", "nonsense", failure={"kind": "of_another_version"})
    corpus_entry.save(Entry(case("sin"), found=other), tmp_path / "shared" / FINDINGS)
    stranger = Found("verdict_of_another_version", "", rewrites=({"pattern": "x"},), numbers={"ratio": float("nan")})
    corpus_entry.save(Entry(case("cos"), found=stranger), tmp_path / "shared" / FINDINGS)
    corpus_entry.save(Entry(case("exp"), found=Found("timeout", "nonsense")), tmp_path / "shared" / FINDINGS)
    assert run_campaign(given, sampler("softmax")).error is None
    assert len(events(given, "Notice")) == 2 * 6 + 2
    assert len(events(given, "CaseJudged")) == 20


@pytest.mark.worker
def test_what_a_kill_kept_from_the_others_is_published_by_the_next_run(tmp_path: Path) -> None:
    given = campaign(tmp_path, "first", rules=[WRONG | {"match": "relu"}], engine="guided")
    run_campaign(given, sampler("relu"))
    published = sorted((tmp_path / "shared").glob(f"*/*{SUFFIX}"))
    assert {path.parent.name for path in published} == {QUEUE, FINDINGS}
    for path in published:
        path.unlink()
    run_campaign(given, sampler())
    assert set(published) <= set((tmp_path / "shared").glob(f"*/*{SUFFIX}"))


def fill(results: Results, queue: SuspicionQueue, *cases: Case) -> Signature:
    """Put a timeout of each case into the queue; gives their signature."""
    result = SubjectResult("inductor", Verdict.TIMEOUT)
    failures = [(one, result) for one in cases]
    for suspicion in results.record_case(case("exp"), position=(1, frozenset()), unexplained=failures):
        queue.put(suspicion)
    return KnownBugs().symptom(result, case("exp")).signature


def test_suspicions_of_one_signature_get_their_turn(tmp_path: Path) -> None:
    """The smallest first. Then the oldest, and several at a time, since what was found explains none of them."""
    results = Results(tmp_path)
    queue = SuspicionQueue(results, KnownBugs())
    kinds = [("exp",) * 4, ("exp",), ("exp",) * 3, ("exp",) * 2, ("exp",) * 5, ("exp",) * 6]
    signature = fill(results, queue, *(case(*one) for one in kinds))

    def take() -> int | None:
        taken = queue.take()
        return None if taken is None else len(taken[0].case.ops)

    assert [take(), take()] == [1, None]
    queue.finish(signature, fruitful=True)
    assert [take(), take()] == [4, None]
    queue.finish(signature, fruitful=True)
    assert [take(), take(), take()] == [3, 2, None]
    results.close()


def test_suspicions_about_the_users_function_come_before_those_about_eager(tmp_path: Path) -> None:
    results = Results(tmp_path)
    queue = SuspicionQueue(results, KnownBugs(), eager_last=True)
    failures = [
        (case("exp"), SubjectResult("mine:attention", Verdict.EAGER_SUSPECT)),
        (case("exp", "exp"), SubjectResult("mine:attention", Verdict.WRONG_RESULT)),
        (case("exp", "exp"), SubjectResult("mine:attention", Verdict.RUNTIME_ERROR)),
    ]
    for suspicion in results.record_case(case("exp"), position=(1, frozenset()), unexplained=failures):
        queue.put(suspicion)
    taken = [queue.take() for _ in failures]
    assert [one[0].result.verdict for one in taken if one] == ["wrong_result", "runtime_error", "eager_suspect"]
    results.close()
