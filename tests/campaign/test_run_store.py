"""A run's results, numbers and events, and `fuzz.status` over them."""

import fcntl
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz import run_database, run_store
from fuzz.campaign.options import StopReason
from fuzz.campaign.session import run_campaign
from fuzz.events import (
    Bus,
    CampaignEnded,
    CampaignStarted,
    Counts,
    ForkRefused,
    SuspicionClosed,
    SuspicionOutcome,
    WorkerDied,
)
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import FaultyOperation, Process, Value
from fuzz.run_database import LOCK_FILE, RESULTS_FILE, StoreLocked
from fuzz.run_store import Results
from fuzz.run_summary import FunctionSummary, RunSummary
from fuzz.status import status
from generators.errors import UserError
from generators.program.case import Case
from generators.records import encode
from tests.campaign.fakes import case, events, judged, options, sampler, setup
from tests.campaign.test_campaign import WRONG, found
from tests.command import run_command


@pytest.mark.worker
def test_results_that_another_process_locks_end_the_campaign_and_cost_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_database, "_LOCK_SECONDS", 0.1)
    given = options(tmp_path, budget="30x", rules=[WRONG])
    cases = sampler("softmax")
    with closing(sqlite3.connect(tmp_path / "unused", check_same_thread=False)) as other:

        def sample(seed: int, index: int, **_: object) -> Case:
            if index == 12 and not other.in_transaction:
                other.execute("ATTACH ? AS results", (str(given.out / RESULTS_FILE),))
                other.execute("BEGIN IMMEDIATE")
                other.execute("UPDATE results.counts SET place = place")
            return cases(seed, index)

        ending = run_campaign(given, sample)
        assert isinstance(ending.error, StoreLocked) and f"{StopReason.LOCKED}: 11 cases" in ending.summary
        with pytest.raises(StoreLocked):
            run_campaign(given, sample)
    assert run_campaign(given, cases).error is None
    assert len(found(given)) == 1
    judged = [event["index"] for event in events(given.out, "CaseJudged")]
    assert sorted(judged) == list(range(len(judged)))


@pytest.mark.worker
def test_commands_read_no_results_that_are_locked_or_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_database, "_LOCK_SECONDS", 0.1)
    given = options(tmp_path, budget="2x")
    run_campaign(given, sampler())
    with closing(sqlite3.connect(given.out / RESULTS_FILE)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE counts SET place = place")
        locked = run_command("fuzz.status", given.out)
    (given.out / RESULTS_FILE).write_bytes(b"")
    empty = run_command("fuzz.status", given.out)
    assert [(done.returncode, done.stdout, done.stderr.count("\n")) for done in (locked, empty)] == [(2, "", 1)] * 2
    assert "locked" in locked.stderr
    assert "empty" in empty.stderr


@pytest.mark.worker
@pytest.mark.parametrize("content", ["", "PRAGMA journal_mode=WAL"])
def test_a_run_whose_results_are_gone_is_damaged_and_a_run_that_wrote_none_begins(tmp_path: Path, content: str) -> None:
    given = options(tmp_path, budget="2x")

    def empty() -> None:
        (given.out / RESULTS_FILE).write_bytes(b"")
        if content:  # as the copy of a run has, if its log was left behind
            with closing(sqlite3.connect(given.out / RESULTS_FILE)) as store:
                store.execute(content)

    given.out.mkdir()
    (given.out / LOCK_FILE).touch()
    empty()
    run_campaign(given, sampler())
    assert len(events(given.out, "CaseJudged")) == 2
    empty()
    before = {*given.out.iterdir()}
    with pytest.raises(UserError, match="damaged"):
        run_campaign(given, sampler())
    assert {*given.out.iterdir()} == before


@pytest.mark.worker
@pytest.mark.parametrize(
    ("make", "said"), [("PRAGMA user_version=77", "store of format 77"), ("CREATE TABLE of_others (x)", "format 0")]
)
def test_a_store_of_something_else_is_refused(tmp_path: Path, make: str, said: str) -> None:
    given = options(tmp_path)
    given.out.mkdir()
    (given.out / RESULTS_FILE).write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(UserError, match="can't be opened"):
        run_campaign(given, sampler())
    (given.out / RESULTS_FILE).unlink()
    with closing(sqlite3.connect(given.out / RESULTS_FILE)) as store:
        store.execute(make)
    with pytest.raises(UserError, match=said):
        run_campaign(given, sampler())


def test_events_add_up() -> None:
    counts = Counts()
    for event in (
        judged(0, passes=Verdict.OK),
        judged(3, passes=Verdict.OK, triton=Verdict.SKIPPED),
        judged(1, triton=Verdict.SKIPPED),
        WorkerDied(worker=0, reason="timed out after 9 s", how=Process.TIMEOUT),
        ForkRefused(worker=0),
        WorkerDied(worker=0, reason="a fault of attnfuzz"),
        SuspicionClosed(suspicion=1, case="", outcome=SuspicionOutcome.FINDING, message="", probes=3),
        CampaignEnded(reason="budget spent"),
    ):
        counts.add(event, 1e9)
    assert counts.verdicts == {"passes": {Verdict.OK: 2}, "triton": {Verdict.SKIPPED: 2}}
    assert (counts.compared, counts.lost, counts.timeouts, counts.closed) == (2, 2, 1, 1)
    assert (counts.ended, counts.not_forked) == ("budget spent", 1)
    assert (counts.cursor, counts.beyond) == (2, (3,))


def test_cases_coverage_and_suspicions_come_from_the_store(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        bmm = CoverageItem(CoverageKind.OP, "aten.bmm")
        for index in (0, 1, 3):
            results.record_case(case("exp"), judged(index, coverage=[bmm]))
        run = RunSummary.read(results)
    assert (run.cases, run.coverage, run.waiting, run.findings) == (3, {bmm: 3}, 0, ())
    assert (run.state, RunSummary.load(tmp_path).state) == ("runs", "killed")


def test_counts_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    Results(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / RESULTS_FILE)) as store:
        stored = {"runs": 2, "cases": 9, "losses": {"timed out after N s": 1}}
        store.execute("UPDATE counts SET counts = ?", (json.dumps(stored),))
        store.commit()
    counts = RunSummary.load(tmp_path).counts
    assert (counts.runs, counts.lost) == (2, 0)


STARTED = CampaignStarted(
    seed=1, index=0, subjects=("passes",), workers=1, torch="2.13.0", device="cpu", device_name="x86_64", pending=0
)


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


@pytest.mark.worker
def test_the_numbers_of_a_campaign_add_up_over_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_entry.write(Entry(case("exp")), tmp_path / "seeds" / "a.case.yaml")
    one, other = (options(tmp_path / name, "20x", rules=[WRONG]) for name in ("one", "other"))
    for given in (one, one, other):
        run_campaign(given, sampler("softmax"))
    capsys.readouterr()
    with (other.out / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status(one.out, other.out, json=tmp_path / "numbers.json")
    titles, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [str(one.out), str(other.out)]
    assert "budget spent" in rows[0] and " runs " in rows[1] and len({len(titles), *map(len, rows)}) <= 3
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert [run["running"] for run in numbers] == [False, True]
    assert [run["cases"] for run in numbers] == [40, 20]
    assert [run["new_findings"] for run in numbers] == [1, 1]
    assert numbers[0]["waiting_suspicions"] == 0 and numbers[0]["size_bytes"] > 10_000
    run = RunSummary.load(one.out)
    assert (run.counts.runs, run.cases, run.counts.verdicts["passes"].total()) == (2, 40, 40)


@pytest.mark.worker
def test_json_without_a_file_is_all_that_is_printed(tmp_path: Path) -> None:
    given = options(tmp_path, "2x")
    run_campaign(given, sampler())
    for arguments in ((given.out, "--json"), ("--json", "--", given.out)):
        (data,) = json.loads(run_command("fuzz.status", *arguments).stdout)
        assert (data["run"], data["cases"]) == (str(given.out), 2)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        status(tmp_path)
    with pytest.raises(UserError):
        status()


def test_a_kill_costs_no_event_and_each_counts_once(tmp_path: Path) -> None:
    """The counts are those of all events, whenever they were stored last."""
    whole, at = Counts(), 1e9
    with Results(tmp_path) as results:
        for number, event in enumerate([STARTED, *(WorkerDied(worker=n, reason="it ended") for n in range(5))]):
            results.on_event(event, at + number)
            whole.add(event, at + number)
            for index in (2 * number, 2 * number + 1):
                results.record_case(case("exp"), judged(index, passes=Verdict.OK))
                whole.add(judged(index, passes=Verdict.OK), at)
            if number == 3:
                results.finish()
            counts = RunSummary.load(tmp_path).counts
            assert (counts.lost, counts.cursor, counts.verdicts) == (whole.lost, whole.cursor, whole.verdicts)
            assert counts.started == STARTED


def test_events_of_a_long_campaign_take_bounded_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "MAX_LOG_BYTES", 1000)
    with Results(tmp_path) as results:
        bus = Bus([results])
        bus.emit(STARTED)
        for number in range(200):
            bus.emit(WorkerDied(worker=number, reason="it ended"))
            if number % 20 == 19:
                results.finish()
    status(tmp_path, events=tmp_path / "events.ndjson")
    lines = (tmp_path / "events.ndjson").read_text().splitlines()
    numbers = [json.loads(line)["worker"] for line in lines]
    assert numbers == list(range(numbers[0], 200))
    assert 1000 <= sum(map(len, lines)) + len(lines) < 1000 + max(map(len, lines))
    assert RunSummary.load(tmp_path).counts.lost == 200
