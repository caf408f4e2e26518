import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from fuzz.run_store import Results
from tests.campaign.fakes import raised

pytestmark = pytest.mark.worker

ROOT = Path(__file__).parents[2]
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
        [sys.executable, "-m", "tests.campaign.driver", str(directory), budget, json.dumps(rules)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events(directory: Path, *names: str) -> Iterator[dict[str, Any]]:
    path = directory / "run" / "events.ndjson"
    for line in path.read_text().split("\n") if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # A kill may break the last line.
        if event["event"] in names:
            yield event


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_finishes_the_cases_in_hand_and_sums_up(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "1h", rules=RULES, seconds=0.01)
    until(lambda: len(list(events(tmp_path, "CaseJudged"))) > 5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out.startswith("interrupted: ") or "\ninterrupted: " in out
    assert f"-m fuzz.run --out {tmp_path / 'run'}" in out
    assert [event["reason"] for event in events(tmp_path, "CampaignEnded")] == ["interrupted"]
    assert all(ended(event["pid"]) for event in events(tmp_path, "WorkerStarted"))


def test_the_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "1h", rules=[{"match": "softmax", "subjects": ["passes"], "do": "hang"}])
    until(lambda: list(events(tmp_path, "WorkerStarted")))
    until(lambda: len(list(events(tmp_path, "CaseJudged"))) > 0)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    process.communicate()
    # The hang it cut short is nobody's fault.
    results = Results(tmp_path / "run")
    assert list(results.waiting()) == []
    results.close()
    assert all(ended(event["pid"]) for event in events(tmp_path, "WorkerStarted"))


def test_an_interrupt_before_the_first_worker_is_ready_ends_it(tmp_path: Path) -> None:
    process = start(tmp_path, "1h", hangs="importing my_kernel")
    until(lambda: [*events(tmp_path, "Notice")])  # of the start that takes long
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 130
    process.communicate()
    assert not (tmp_path / "run").exists()


def test_a_terminal_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    # The driver leads the session of the terminal, and so gets SIGHUP when it goes.
    arguments = [sys.executable, "-m", "tests.campaign.driver", str(tmp_path), "1h", json.dumps({"rules": RULES})]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, has it ignored
        os.execv(sys.executable, arguments)
    until(lambda: found(tmp_path))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert [event["reason"] for event in events(tmp_path, "CampaignEnded")] == ["interrupted"]
    results = Results(tmp_path / "run")
    assert len(found(tmp_path)) == len(results.findings())
    results.close()


def test_output_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "40x", rules=RULES)
    assert process.stdout and process.stderr
    process.stdout.close()
    process.stderr.close()
    assert process.wait(60) == 1
    assert found(tmp_path) == sorted(KINDS)


def test_killed_at_any_instant_it_goes_on_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    choice = random.Random(7)
    for _ in range(8):
        process = start(tmp_path, "1h", rules=RULES, seconds=0.002)
        with suppress(subprocess.TimeoutExpired):
            process.wait(choice.uniform(0.2, 0.8))
        process.kill()
        process.communicate()
    process = start(tmp_path, "60x", rules=RULES)
    _, error = process.communicate(timeout=60)
    assert process.returncode in {0, 1}, error
    # Each bug has one minimal case in the corpus and one row, and no suspicion is left over.
    assert found(tmp_path) == sorted(KINDS)
    results = Results(tmp_path / "run")
    rows = results.findings()
    assert sorted((row.result.verdict.value, row.file) for row in rows) == sorted(
        (path.name.split("-")[0], str(path)) for path in (tmp_path / "found").glob("*.case.yaml")
    )
    # Every failure there was is counted: 4 kinds of special cases take turns at every third index, 3 of them fail.
    cursor, beyond = results.position()
    assert beyond == frozenset()
    failing = sum(1 for index in range(0, cursor, 3) if index // 3 % 4 < 3)
    assert sum(row.count for row in rows) == failing
    assert list(results.waiting()) == []
    results.close()
    until(lambda: all(ended(event["pid"]) for event in events(tmp_path, "WorkerStarted")))


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
    assert {process.wait(60) for process in running.values()} <= {0, 1}
    for process in running.values():
        process.communicate()
    assert found(tmp_path) == sorted(KINDS)
    for place in places:
        results = Results(place / "run")
        assert not list(results.waiting())
        results.close()
