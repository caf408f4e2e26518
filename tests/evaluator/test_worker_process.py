"""A death, a hang, hunger and babble of a worker are results; a fault of attnfuzz is none."""

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.ask import transport, worker_process
from fuzz.ask.question import Question, build_check
from fuzz.ask.transport import MachineLost, PipeTransport, WorkerUnavailable
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import Stopped, WorkerFault, WorkerLost, WorkerProcess
from fuzz.protocol import Check, Result, Verdict
from fuzz.protocol.failures import Process, ProcessLost
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.sampling.sample import sample
from tests.campaign.fakes import case, setup

pytestmark = pytest.mark.worker

CHECK = build_check(Question(case("exp", "softmax"), ("passes", "inductor")))
HARMLESS = build_check(Question(case("tanh"), ("passes",)))


def worker(tmp_path: Path, **given: Any) -> WorkerProcess:
    config = replace(setup(**given), cache=tmp_path / "cache", log=tmp_path / "log")
    return WorkerProcess(config, PipeTransport())


def rule(**given: Any) -> dict[str, Any]:
    return {"rules": [{"match": "softmax", "subjects": ["inductor"], **given}]}


def ask(process: WorkerProcess, check: Check) -> Result:
    process.send(check)
    return process.receive()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_compiled_code_avoids_directories_where_inductor_can_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert "TORCHINDUCTOR_CACHE_DIR" in WorkerConfig(cache=tmp_path / "cache").environment()
    assert "TORCHINDUCTOR_CACHE_DIR" not in WorkerConfig(cache=tmp_path / "my run" / "cache").environment()


def test_one_process_answers_many_checks(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "verdict": "rounding"}])
    pids = set()
    for _ in range(3):
        result = ask(w, CHECK)
        assert [(r.subject, r.verdict) for r in result.results] == [
            ("passes", Verdict.ROUNDING),
            ("inductor", Verdict.ROUNDING),
        ]
        pids.add(w.start().pid)
    assert len(pids) == 1
    w.close()
    assert is_gone(pids.pop())


PLACE = "act (campaign/fake_worker.py)"


@pytest.mark.parametrize("dumps", [False, True])
@pytest.mark.parametrize(
    ("given", "limits", "verdict", "failure", "has_place"),
    [
        ({"do": "die"}, {}, Verdict.WORKER_DIED, ProcessLost(Process.SIGNAL, "SIGSEGV"), True),
        ({"do": "die_in_a_thread"}, {}, Verdict.WORKER_DIED, ProcessLost(Process.SIGNAL, "SIGSEGV"), True),
        ({"do": "exit"}, {}, Verdict.WORKER_DIED, ProcessLost(Process.EXIT, "7", last_words="cannot go on"), False),
        ({"do": "time_out"}, {"timeout": 60.0}, Verdict.TIMEOUT, ProcessLost(Process.TIMEOUT, "60"), True),
        ({"do": "eat"}, {"memory_mib": 100}, Verdict.OUT_OF_MEMORY, ProcessLost(Process.OUT_OF_MEMORY, "100"), True),
        (
            {"do": "babble"},
            {},
            Verdict.WORKER_DIED,
            ProcessLost(Process.PROTOCOL, "not a message (Expecting value: line 1 column 1 (char 0)): Segmentation"),
            False,
        ),
    ],
)
def test_a_lost_process_is_a_failure_of_the_subject_at_work(
    tmp_path: Path,
    given: dict[str, Any],
    limits: dict[str, Any],
    verdict: Verdict,
    failure: ProcessLost,
    *,
    has_place: bool,
    dumps: bool,
) -> None:
    w = worker(tmp_path, faulthandler=dumps, **rule(**given), **limits)
    result = ask(w, CHECK)
    assert result.rejected is None
    (lost,) = result.results
    assert (lost.subject, lost.verdict) == ("inductor", verdict)
    assert isinstance(lost.failure, ProcessLost)
    assert (lost.failure.how, lost.failure.detail) == (failure.how, failure.detail)
    assert lost.failure.place == (PLACE if dumps and has_place else "")
    assert lost.failure.last_words == failure.last_words
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    w.close()


def test_a_fault_of_attnfuzz_accuses_no_subject(tmp_path: Path) -> None:
    w = worker(tmp_path, **rule(do="fail"))
    with pytest.raises(WorkerFault, match="in inductor") as fault:
        ask(w, CHECK)
    assert str(fault.value).endswith("IndexError: amax over nothing")
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    w.close()


def test_a_check_has_the_attention_stub_of_its_case() -> None:
    attention = next(
        c for c in (sample(1, index, attention_only=True) for index in range(20)) if emit_attention_stub(c) is not None
    )
    assert build_check(Question(attention, ("passes",))).attention_stub == emit_attention_stub(attention)
    assert CHECK.attention_stub is None


def test_a_death_in_eager_rejects_the_case(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "subjects": ["eager"], "do": "die"}])
    result = ask(w, CHECK)
    assert result.rejected is not None
    assert not result.results
    w.close()


def test_children_of_a_worker_end_with_it(tmp_path: Path) -> None:
    w = worker(tmp_path, child_pid=str(tmp_path / "pid"), **rule(do="time_out"))
    ask(w, CHECK)
    assert is_gone(int((tmp_path / "pid").read_text()))
    w.close()


def test_killed_from_another_thread_a_check_ends_at_once(tmp_path: Path) -> None:
    w = worker(tmp_path, timeout=60.0, **rule(do="hang"))
    w.start()
    timer = threading.Timer(0.2, w.kill)
    timer.start()
    with pytest.raises(Stopped):
        ask(w, CHECK)
    timer.join()
    w.close()


@pytest.mark.parametrize("dumps", [False, True])
def test_a_long_log_keeps_the_lines_before_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dumps: bool
) -> None:
    monkeypatch.setattr(transport, "_LOG_BYTES", 200_000)
    config = replace(setup(faulthandler=dumps, **rule(do="shout")), log=tmp_path / "log")
    w = WorkerProcess(config, PipeTransport())
    for _ in range(2):
        (lost,) = ask(w, CHECK).results
        assert isinstance(lost.failure, ProcessLost)
        assert (lost.failure.detail, lost.failure.last_words) == ("SIGSEGV", "" if dumps else "line 99999")
        assert bool(lost.failure.place) == dumps
    w.close()
    log = (tmp_path / "log").read_bytes()
    assert b"line 99999\n" in log
    assert len(log) < 300_000


def test_a_full_disk_stops_no_print() -> None:
    w = WorkerProcess(replace(setup(**rule(do="shout")), log=Path("/dev/full")), PipeTransport())
    (lost,) = ask(w, CHECK).results
    assert isinstance(lost.failure, ProcessLost)
    assert (lost.failure.detail, lost.failure.last_words) == ("SIGSEGV", "line 99999")
    w.close()


def test_a_worker_found_dead_between_two_cases_is_replaced(tmp_path: Path) -> None:
    w = worker(tmp_path)
    first = w.start().pid
    os.kill(first, 9)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    assert w.start().pid != first
    w.close()


def test_a_failed_start_after_a_good_start_is_tried_again(tmp_path: Path) -> None:
    deaths: list[str | ProcessLost] = []
    config = setup(starts=str(tmp_path / "starts"), bad_starts=[2, 3], **rule(do="die"))
    w = WorkerProcess(config, PipeTransport(), on_death=deaths.append)
    assert [r.verdict for r in ask(w, CHECK).results] == [Verdict.WORKER_DIED]
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    assert len(deaths) == 3
    w.close()


def test_starts_that_keep_failing_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01, 0.01))
    starts = tmp_path / "starts"
    w = worker(tmp_path, starts=str(starts), bad_starts=list(range(2, 99)), **rule(do="die"))
    ask(w, CHECK)
    for _ in range(2):
        with pytest.raises(WorkerUnavailable):
            ask(w, HARMLESS)
    # The second time one try is enough to see that nothing has changed.
    assert starts.stat().st_size == 1 + 3 + 1
    w.close()


def test_a_first_start_that_fails_is_not_repeated(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    w = worker(tmp_path, starts=str(starts), bad_starts=[1])
    with pytest.raises(WorkerUnavailable):
        w.start()
    assert starts.stat().st_size == 1
    w.close()


def test_a_start_that_hangs_is_reported_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "START_SECONDS", 2.0)
    w = worker(tmp_path, timeout=0.5, faulthandler=True, hangs="importing my_kernel")
    with pytest.raises(WorkerUnavailable, match=r"importing my_kernel: .* main \(campaign/fake_worker\.py\)"):
        w.start()
    w.close()


@pytest.mark.parametrize(("from_check", "verdicts"), [(2, [Verdict.OK, Verdict.OK]), (1, [Verdict.WORKER_DIED])])
def test_a_worker_killed_once_accuses_no_case(tmp_path: Path, from_check: int, verdicts: list[Verdict]) -> None:
    w = worker(tmp_path, **rule(do="killed", from_check=from_check))
    ask(w, HARMLESS)
    assert [r.verdict for r in ask(w, CHECK).results] == verdicts
    w.close()


def test_a_process_that_a_dead_worker_forked_delays_nothing(tmp_path: Path) -> None:
    w = worker(tmp_path, timeout=60.0, **rule(do="fork"))
    assert [r.verdict for r in ask(w, CHECK).results] == [Verdict.WORKER_DIED]
    w.close()


def test_a_worker_whose_device_is_lost_is_replaced_and_its_last_result_counts(tmp_path: Path) -> None:
    w = worker(tmp_path, rules=[{"match": "softmax", "subjects": ["inductor", "spent"], "verdict": "runtime_error"}])
    first = w.start().pid
    assert [r.verdict for r in ask(w, CHECK).results] == [Verdict.OK, Verdict.RUNTIME_ERROR]
    assert is_gone(first)
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    w.close()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (setup(unusable="it has no torch").command, "it has no torch"),
        (setup(raw="Python 2.7").command, "Python 2.7"),
        (setup(raw=json.dumps({"kind": "exit"})).command, "exit"),
        (("/nonexistent/python",), "No such file or directory"),
        ((sys.executable, "-c", "import sys; sys.exit('no such module')"), "no such module"),
        ((sys.executable, "-c", "import gone"), "code 1: ModuleNotFoundError: No module named 'gone'$"),
        (
            ("/bin/sh", "-c", "printf 'python: not found\n\nthere are:\n  3.12\n' >&2; exit 127"),
            "not found there are: 3.12$",
        ),
    ],
)
def test_a_worker_that_cannot_work_is_an_error_of_one_line(tmp_path: Path, command: tuple[str, ...], why: str) -> None:
    w = WorkerProcess(WorkerConfig(command=command, log=tmp_path / "log"), PipeTransport())
    with pytest.raises(UserError, match=why) as error:
        w.start()
    assert "\n" not in str(error.value)
    w.close()


class ElsewhereTransport(PipeTransport):
    """Pipes that stand for other machines; `lost` are the numbers of lines at which a machine is lost."""

    machine = "node 3"

    def __init__(self, *lost: int) -> None:
        super().__init__()
        self.lost, self.lines = lost, 0

    def read(self, deadline: float) -> bytes | None:
        self.lines += 1
        if self.lines in self.lost:
            raise MachineLost("it was switched off")
        return super().read(deadline)


def test_a_lost_machine_accuses_no_case_and_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01,))
    deaths: list[str | ProcessLost] = []
    w = WorkerProcess(setup(), ElsewhereTransport(3, 4, 5, 6), on_death=deaths.append)
    for _ in range(4):
        with pytest.raises(WorkerLost):
            ask(w, HARMLESS)
    assert deaths == ["node 3: it was switched off"] * 4
    assert [r.verdict for r in ask(w, HARMLESS).results] == [Verdict.OK]
    w.close()


def test_without_any_machine_that_works_there_is_no_worker(tmp_path: Path) -> None:
    for config, lost in ((setup(), (1,)), (setup(unusable="it has no torch"), ())):
        w = WorkerProcess(config, ElsewhereTransport(*lost))
        with pytest.raises(WorkerUnavailable, match="node 3: "):
            w.start()
        w.close()


def test_compiled_code_is_removed_when_it_takes_much_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CACHE_BYTES", 100)
    for name, size in (("worker-0", 90), ("worker-1", 110)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel").write_bytes(b"x" * size)
        made = WorkerProcess(replace(setup(), cache=tmp_path / name), PipeTransport())
        made.start()
        made.close()
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["worker-0", "kernel", "worker-1"]
