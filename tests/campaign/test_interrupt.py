"""Interrupts, kills and full disks: a campaign goes on, loses nothing and finds each bug once."""

import errno
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz.attribution.attribute import find_cause
from fuzz.campaign import investigation_runner
from fuzz.campaign.options import DiskFull, StopCondition, StopReason
from fuzz.campaign.session import run_campaign
from fuzz.known_bugs import identify
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.case import Case
from tests.campaign import test_campaign
from tests.campaign.fakes import case, events, options, raised, sampler
from tests.campaign.test_campaign import WRONG, rows
from tests.command import ROOT

RULES = [
    {
        "match": "softmax",
        "verdict": "wrong_result",
        "applied_rewrites": ["_sfdp_pattern_5_inference"],
        "dynamo_same": False,
    },
    {"match": "relu", "verdict": "compile_error", "failure": raised("KeyError", "buf7")},
    {"match": "log\\(", "verdict": "nonfinite", "dynamo_same": False},
]
KINDS = {("wrong_result", "softmax"), ("compile_error", "relu"), ("nonfinite", "log")}


def start(directory: Path, budget: str, **rules: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.campaign.fakes", str(directory), budget, json.dumps(rules)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def found(directory: Path) -> list[tuple[str, str]]:
    entries = corpus_entry.load_directory(directory / "found").values()
    return sorted((entry.found.verdict, entry.case.ops[0].kind) for entry in entries if entry.found)


@pytest.mark.worker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_finishes_the_cases_in_hand_and_sums_up(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "1h", rules=RULES, seconds=0.01)
    until(lambda: len(list(events(tmp_path / "run", "CaseJudged"))) > 5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out.startswith("interrupted: ") or "\ninterrupted: " in out
    assert f"-m fuzz.run --out {tmp_path / 'run'}" in out
    assert [event["reason"] for event in events(tmp_path / "run", "CampaignEnded")] == ["interrupted"]
    assert all(ended(event["pid"]) for event in events(tmp_path / "run", "WorkerStarted"))


@pytest.mark.worker
def test_the_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "1h", rules=[{"match": "softmax", "subjects": ["passes"], "do": "hang"}])
    until(lambda: list(events(tmp_path / "run", "WorkerStarted")))
    until(lambda: len(list(events(tmp_path / "run", "CaseJudged"))) > 0)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    process.communicate()
    # The hang it cut short is nobody's fault.
    with Results(tmp_path / "run") as results:
        assert list(results.waiting()) == []
    assert all(ended(event["pid"]) for event in events(tmp_path / "run", "WorkerStarted"))


@pytest.mark.worker
def test_an_interrupt_before_the_first_worker_is_ready_ends_it(tmp_path: Path) -> None:
    process = start(tmp_path, "1h", hangs="importing my_kernel")
    until(lambda: [*events(tmp_path / "run", "Notice")])  # of the start that takes long
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 130
    process.communicate()
    assert not (tmp_path / "run").exists()


@pytest.mark.worker
def test_a_terminal_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    # The driver leads the session of the terminal, and so gets SIGHUP when it goes.
    arguments = [sys.executable, "-m", "tests.campaign.fakes", str(tmp_path), "1h", json.dumps({"rules": RULES})]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, has it ignored
        os.execv(sys.executable, arguments)
    until(lambda: found(tmp_path))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert [event["reason"] for event in events(tmp_path / "run", "CampaignEnded")] == ["interrupted"]
    with Results(tmp_path / "run") as results:
        assert len(found(tmp_path)) == len(results.findings())


@pytest.mark.worker
def test_output_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "40x", rules=RULES)
    assert process.stdout and process.stderr
    process.stdout.close()
    process.stderr.close()
    assert process.wait(300) == 1
    assert found(tmp_path) == sorted(KINDS)


@pytest.mark.worker
def test_killed_at_any_instant_it_goes_on_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    choice = random.Random(7)
    for _ in range(8):
        process = start(tmp_path, "1h", rules=RULES, seconds=0.002)
        with suppress(subprocess.TimeoutExpired):
            process.wait(choice.uniform(0.2, 0.8))
        process.kill()
        process.communicate()
    process = start(tmp_path, "60x", rules=RULES)
    _, error = process.communicate(timeout=300)
    assert process.returncode in {0, 1}, error
    # Each bug has one minimal case in the corpus and one row, and no suspicion is left over.
    assert found(tmp_path) == sorted(KINDS)
    with Results(tmp_path / "run") as results:
        rows = results.findings()
        assert sorted((row.result.verdict.value, row.file) for row in rows) == sorted(
            (path.name.split("-")[0], str(path)) for path in (tmp_path / "found").glob("*.case.yaml")
        )
        # Every failure there was is counted: 4 kinds of special cases take turns at every third index, 3 of them fail.
        counts = results.counts
        assert (counts.beyond, counts.verdicts["passes"].total()) == ((), counts.cursor)
        failing = sum(1 for index in range(0, counts.cursor, 3) if index // 3 % 4 < 3)
        assert sum(row.count for row in rows) == failing
        assert list(results.waiting()) == []
    until(lambda: all(ended(event["pid"]) for event in events(tmp_path / "run", "WorkerStarted")))


@pytest.mark.worker
def test_campaigns_with_one_corpus_that_are_killed_by_turns_save_each_bug_once(tmp_path: Path) -> None:
    choice, places = random.Random(5), (tmp_path / "one", tmp_path / "two")
    rules: dict[str, Any] = {"rules": RULES, "corpus": str(tmp_path / "found")}
    running = {place: start(place, "1h", seconds=0.002, **rules) for place in places}
    for number in range(4):
        place = places[number % 2]
        with suppress(subprocess.TimeoutExpired):
            running[place].wait(choice.uniform(0.3, 1.2))
        running[place].kill()
        running[place].communicate()
        running[place] = start(place, "1h" if number < 2 else "60x", seconds=0.002, **rules)
    assert {process.wait(300) for process in running.values()} <= {0, 1}
    for process in running.values():
        process.communicate()
    assert found(tmp_path) == sorted(KINDS)
    for place in places:
        with Results(place / "run") as results:
            assert not list(results.waiting())


SMALL, LARGE = case("exp", "softmax", rows=7), case("exp", "softmax", "tanh", rows=7)


@pytest.mark.worker
def test_a_disk_that_fills_up_ends_the_campaign_and_costs_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tmp_path, budget="200x", rules=[WRONG])
    cases, usage = sampler("softmax"), shutil.disk_usage

    def sample(seed: int, index: int, **_: object) -> Case:
        if index == 150:
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=2**20))
        return cases(seed, index)

    assert isinstance(run_campaign(given, sample).error, DiskFull)
    assert len(test_campaign.found(given)) == 1
    (ended,) = events(given.out, "CampaignEnded")
    assert ended["reason"] == StopReason.DISK_FULL


@pytest.mark.worker
@pytest.mark.parametrize("end", ["nothing", "disk", "budget"])
@pytest.mark.parametrize(("one", "other"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_experiments_that_end_early_double_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, one: Case, other: Case
) -> None:
    in_a_hurry = options(tmp_path, "1x", rules=[WRONG], shrink_seconds=0.0)
    assert run_campaign(in_a_hurry, lambda *_, **__: one).new == 1
    (first,) = test_campaign.found(in_a_hurry)
    assert len(first.case.ops) == len(one.ops)
    usage = shutil.disk_usage
    given = options(tmp_path, "1x", rules=[WRONG])
    with monkeypatch.context() as patched:

        def find(*asked: Any) -> Any:
            if end == "budget":
                patched.setattr(StopCondition, "seconds_left", 0.0)
            with monkeypatch.context() as during:
                if end == "disk":
                    during.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=0))
                return find_cause(*asked)

        patched.setattr(investigation_runner, "find_cause", find)
        ending = run_campaign(given, lambda *_, **__: other)
    assert isinstance(ending.error, DiskFull) is (end == "disk")
    assert rows(given)[1].get("duplicate", 0) == (end == "nothing")
    run_campaign(given, lambda *_, **__: other)
    assert test_campaign.found(given) == [first]
    assert rows(given)[1] == {"finding": 1, "duplicate": 2}


@pytest.mark.worker
def test_a_finding_whose_file_is_not_written_is_known_to_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{**WRONG, "match": "exp", "applied_rewrites": ["one"]}, {**WRONG, "applied_rewrites": ["other"]}]
    cases = [case("exp"), case("softmax")]
    given = options(tmp_path, "8x", rules=rules, workers=2)
    both, examined = threading.Barrier(2, timeout=300.0), set[int]()
    write, failed = corpus_entry.write, list[Path]()

    def examine_both(*asked: Any, **options: Any) -> Any:
        answer = identify(*asked, **options)
        if threading.get_ident() not in examined:
            examined.add(threading.get_ident())
            both.wait()
        return answer

    def write_later(entry: Entry, path: Path) -> Path:
        if failed:
            return write(entry, path)
        failed.append(path)
        raise UserError(f"{path}: can't be written") from OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(investigation_runner, "identify", examine_both)
        patched.setattr(corpus_entry, "write", write_later)
        assert isinstance(run_campaign(given, lambda _, index, **__: cases[index % 2]).error, DiskFull)
    assert not failed[0].exists()
    run_campaign(given, lambda _, index, **__: cases[index % 2])
    assert list(given.corpus.iterdir()) == failed
