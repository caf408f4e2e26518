import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fuzz.evaluator import Setup, Worker, WorkerFault, request
from fuzz.protocol import Verdict
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.sampling.sample import sample
from tests.campaign.fakes import case, setup

CHECK = request(case("exp", "softmax"), ("passes", "inductor"))
HARMLESS = request(case("tanh"), ("passes",))


def worker(tmp_path: Path, **given: Any) -> Worker:
    return Worker(setup(**given), tmp_path / "cache", tmp_path / "log")


def rule(**given: Any) -> dict[str, Any]:
    return {"rules": [{"match": "softmax", "subjects": ["inductor"], **given}]}


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_worker_answers_in_its_process_again_and_again(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "verdict": "rounding"}])
    pids = set()
    for _ in range(3):
        result = w.check(CHECK)
        assert [(r.subject, r.verdict) for r in result.results] == [
            ("passes", Verdict.ROUNDING),
            ("inductor", Verdict.ROUNDING),
        ]
        pids.add(w.start().pid)
    assert len(pids) == 1
    w.close()
    assert gone(pids.pop())


@pytest.mark.parametrize(
    ("given", "limits", "verdict", "message"),
    [
        ({"do": "die"}, {}, Verdict.WORKER_DIED, "died by SIGSEGV"),
        ({"do": "exit"}, {}, Verdict.WORKER_DIED, "ended with exit code 7: cannot go on"),
        ({"do": "hang"}, {"timeout": 0.5}, Verdict.TIMEOUT, "no end after 0.5 s"),
        ({"do": "eat"}, {"memory_mib": 100}, Verdict.OUT_OF_MEMORY, "used more than 100 MiB"),
    ],
)
def test_the_end_of_a_worker_is_a_verdict_on_the_subject_at_work(
    tmp_path: Path, given: dict[str, Any], limits: dict[str, Any], verdict: Verdict, message: str
) -> None:
    w = worker(tmp_path, **rule(**given), **limits)
    result = w.check(CHECK)
    assert result.rejected is None
    assert [(r.subject, r.verdict, r.message) for r in result.results] == [("inductor", verdict, message)]
    assert [r.verdict for r in w.check(HARMLESS).results] == [Verdict.OK]
    w.close()


def test_a_fault_of_ours_accuses_no_subject(tmp_path: Path) -> None:
    w = worker(tmp_path, **rule(do="fail"))
    with pytest.raises(
        WorkerFault, match=r"the worker failed in inductor:\nTraceback .*\nIndexError: amax over nothing"
    ):
        w.check(CHECK)
    assert [r.verdict for r in w.check(HARMLESS).results] == [Verdict.OK]
    w.close()


def test_a_worker_is_told_what_the_contracts_of_a_case_say_whatever_the_subjects() -> None:
    contracted = next(
        c for c in (sample(1, index, contracted=True) for index in range(20)) if emit_attention_stub(c) is not None
    )
    assert request(contracted, ("passes",)).stand_in == emit_attention_stub(contracted)
    assert CHECK.stand_in is None


def test_a_death_in_eager_accuses_no_subject(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "subjects": ["eager"], "do": "die"}])
    result = w.check(CHECK)
    assert result.rejected == "worker_died in eager: died by SIGSEGV"
    assert not result.results
    w.close()


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    w = worker(tmp_path, timeout=0.5, child_pid=str(tmp_path / "pid"), **rule(do="hang"))
    w.check(CHECK)
    assert gone(int((tmp_path / "pid").read_text()))
    w.close()


def test_killed_from_another_thread_a_check_ends_at_once(tmp_path: Path) -> None:
    w = worker(tmp_path, timeout=60.0, **rule(do="hang"))
    w.start()
    timer = threading.Timer(0.2, w.kill)
    timer.start()
    began = time.monotonic()
    w.check(CHECK)
    assert time.monotonic() - began < 10
    timer.join()
    w.close()


def test_a_worker_found_dead_between_two_cases_is_replaced(tmp_path: Path) -> None:
    w = worker(tmp_path)
    first = w.start().pid
    os.kill(first, 9)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert [r.verdict for r in w.check(HARMLESS).results] == [Verdict.OK]
    assert w.start().pid != first
    w.close()


def test_a_worker_whose_device_is_lost_is_replaced_and_what_it_said_last_counts(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "subjects": ["inductor", "spent"], "verdict": "runtime_error"}])
    first = w.start().pid
    assert [r.verdict for r in w.check(CHECK).results] == [Verdict.OK, Verdict.RUNTIME_ERROR]
    assert gone(first)
    assert [r.verdict for r in w.check(HARMLESS).results] == [Verdict.OK]
    w.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (setup(unusable="it has no torch").command, "it has no torch"),
        (setup(raw="Python 2.7").command, "not JSON: Python 2.7"),
        (setup(raw=json.dumps({"type": "exit"})).command, "ended with exit code 0"),
        (("/nonexistent/python",), "does not start: No such file or directory"),
        ((sys.executable, "-c", "import sys; sys.exit('no such module')"), "ended with exit code 1: no such module"),
    ],
)
def test_a_worker_that_cant_work_is_the_users_business(tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    w = Worker(Setup(command=command), log=tmp_path / "log")
    with pytest.raises(UserError, match=said) as error:
        w.start()
    assert "\n" not in str(error.value)
    w.close()


@pytest.mark.parametrize(
    ("given", "limits", "message"),
    [
        ({"do": "die"}, {}, "died by SIGSEGV in act (campaign/fake_worker.py)"),
        ({"do": "hang"}, {"timeout": 0.5}, "no end after 0.5 s, in act (campaign/fake_worker.py)"),
        ({"do": "eat"}, {"memory_mib": 100}, "used more than 100 MiB, in act (campaign/fake_worker.py)"),
    ],
)
def test_a_worker_with_a_faulthandler_says_where_it_ended(
    tmp_path: Path, given: dict[str, Any], limits: dict[str, Any], message: str
) -> None:
    w = worker(tmp_path, faulthandler=True, **rule(**given), **limits)
    assert [r.message for r in w.check(CHECK).results] == [message]
    w.close()
