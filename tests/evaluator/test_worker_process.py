"""A death, a hang, hunger and babble of a worker are results; a fault of attnfuzz is none."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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


Start = Callable[..., WorkerProcess]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Start]:
    """Makes processes of workers that answer by rules, or are as `config` says; they end with the test."""
    with ExitStack() as stack:

        def make(
            config: WorkerConfig | None = None, *lost: int, deaths: list[Any] | None = None, **given: Any
        ) -> WorkerProcess:
            config = config or replace(setup(**given), cache=tmp_path / "cache", log=tmp_path / "log")
            transport = ElsewhereTransport(*lost) if lost else PipeTransport()
            made = WorkerProcess(config, transport, on_death=(deaths if deaths is not None else []).append)
            stack.callback(made.close)
            return made

        yield make


def rule(**given: Any) -> dict[str, Any]:
    return {"rules": [{"match": "softmax", "subjects": ["inductor"], **given}]}


def ask(process: WorkerProcess, check: Check) -> Result:
    process.send(check)
    return process.receive()


def verdicts_of(process: WorkerProcess, check: Check) -> list[Verdict]:
    return [one.verdict for one in ask(process, check).results]


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


def test_one_process_answers_many_checks(worker: Start) -> None:
    w = worker(rules=[{"match": "softmax", "verdict": "rounding"}])
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
    worker: Start,
    given: dict[str, Any],
    limits: dict[str, Any],
    verdict: Verdict,
    failure: ProcessLost,
    *,
    has_place: bool,
    dumps: bool,
) -> None:
    w = worker(faulthandler=dumps, **rule(**given), **limits)
    result = ask(w, CHECK)
    assert result.rejected is None
    (lost,) = result.results
    assert (lost.subject, lost.verdict) == ("inductor", verdict)
    assert isinstance(lost.failure, ProcessLost)
    assert (lost.failure.how, lost.failure.detail) == (failure.how, failure.detail)
    assert lost.failure.place == (PLACE if dumps and has_place else "")
    assert lost.failure.last_words == failure.last_words
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]


def test_a_fault_of_attnfuzz_accuses_no_subject(worker: Start) -> None:
    w = worker(**rule(do="fail"))
    with pytest.raises(WorkerFault, match="in inductor") as fault:
        ask(w, CHECK)
    assert str(fault.value).endswith("IndexError: amax over nothing")
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]


def test_a_check_has_the_attention_stub_of_its_case() -> None:
    attention = next(
        c for c in (sample(1, index, attention_only=True) for index in range(20)) if emit_attention_stub(c) is not None
    )
    assert build_check(Question(attention, ("passes",))).attention_stub == emit_attention_stub(attention)
    assert CHECK.attention_stub is None


def test_a_death_in_eager_rejects_the_case(worker: Start) -> None:
    w = worker(rules=[{"match": "softmax", "subjects": ["eager"], "do": "die"}])
    result = ask(w, CHECK)
    assert result.rejected is not None
    assert not result.results


def test_children_of_a_worker_end_with_it(worker: Start, tmp_path: Path) -> None:
    w = worker(child_pid=str(tmp_path / "pid"), **rule(do="time_out"))
    ask(w, CHECK)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_killed_from_another_thread_a_check_ends_at_once(worker: Start) -> None:
    w = worker(timeout=60.0, **rule(do="hang"))
    w.start()
    timer = threading.Timer(0.2, w.kill)
    timer.start()
    with pytest.raises(Stopped):
        ask(w, CHECK)
    timer.join()


@pytest.mark.parametrize("dumps", [False, True])
def test_a_long_log_keeps_the_lines_before_a_crash(
    worker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dumps: bool
) -> None:
    monkeypatch.setattr(transport, "_LOG_BYTES", 200_000)
    w = worker(faulthandler=dumps, **rule(do="shout"))
    for _ in range(2):
        (lost,) = ask(w, CHECK).results
        assert isinstance(lost.failure, ProcessLost)
        assert (lost.failure.detail, lost.failure.last_words) == ("SIGSEGV", "" if dumps else "line 99999")
        assert bool(lost.failure.place) == dumps
    w.close()
    log = (tmp_path / "log").read_bytes()
    assert b"line 99999\n" in log
    assert len(log) < 300_000


def test_a_full_disk_stops_no_print(worker: Start) -> None:
    w = worker(replace(setup(**rule(do="shout")), log=Path("/dev/full")))
    (lost,) = ask(w, CHECK).results
    assert isinstance(lost.failure, ProcessLost)
    assert (lost.failure.detail, lost.failure.last_words) == ("SIGSEGV", "line 99999")


def test_a_worker_found_dead_between_two_cases_is_replaced(worker: Start) -> None:
    w = worker()
    first = w.start().pid
    os.kill(first, 9)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]
    assert w.start().pid != first


def test_a_failed_start_after_a_good_start_is_tried_again(worker: Start, tmp_path: Path) -> None:
    deaths = list[str | ProcessLost]()
    w = worker(deaths=deaths, starts=str(tmp_path / "starts"), bad_starts=[2, 3], **rule(do="die"))
    assert verdicts_of(w, CHECK) == [Verdict.WORKER_DIED]
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]
    assert len(deaths) == 3


def test_starts_that_keep_failing_are_given_up(worker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01, 0.01))
    starts = tmp_path / "starts"
    w = worker(starts=str(starts), bad_starts=list(range(2, 99)), **rule(do="die"))
    ask(w, CHECK)
    for _ in range(2):
        with pytest.raises(WorkerUnavailable):
            ask(w, HARMLESS)
    # The second time one try is enough to see that nothing has changed.
    assert starts.stat().st_size == 1 + 3 + 1


def test_a_first_start_that_fails_is_not_repeated(worker: Start, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    w = worker(starts=str(starts), bad_starts=[1])
    with pytest.raises(WorkerUnavailable):
        w.start()
    assert starts.stat().st_size == 1


def test_a_start_that_hangs_is_reported_with_its_step(worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "START_SECONDS", 2.0)
    w = worker(timeout=0.5, faulthandler=True, hangs="importing my_kernel")
    with pytest.raises(WorkerUnavailable, match=r"importing my_kernel: .* main \(campaign/fake_worker\.py\)"):
        w.start()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (rule(do="killed", from_check=2), [Verdict.OK, Verdict.OK]),  # a worker killed once accuses no case
        (rule(do="killed"), [Verdict.WORKER_DIED]),
        (rule(do="fork"), [Verdict.WORKER_DIED]),  # a process that it forked delays nothing
        # The last result of a worker whose device is lost counts.
        (rule(subjects=["inductor", "spent"], verdict="runtime_error"), [Verdict.OK, Verdict.RUNTIME_ERROR]),
    ],
)
def test_a_worker_that_is_lost_is_replaced(worker: Start, rules: dict[str, Any], expected: list[Verdict]) -> None:
    w = worker(timeout=60.0, **rules)
    first = w.start().pid
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]
    assert verdicts_of(w, CHECK) == expected
    assert is_gone(first)
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]


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
def test_a_worker_that_cannot_work_is_an_error_of_one_line(
    worker: Start, tmp_path: Path, command: tuple[str, ...], why: str
) -> None:
    w = worker(WorkerConfig(command=command, log=tmp_path / "log"))
    with pytest.raises(UserError, match=why) as error:
        w.start()
    assert "\n" not in str(error.value)


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


def test_a_lost_machine_accuses_no_case_and_is_left(worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PAUSES", (0.01,))
    deaths = list[str | ProcessLost]()
    w = worker(setup(), 3, 4, 5, 6, deaths=deaths)
    for _ in range(4):
        with pytest.raises(WorkerLost):
            ask(w, HARMLESS)
    assert deaths == ["node 3: it was switched off"] * 4
    assert verdicts_of(w, HARMLESS) == [Verdict.OK]


def test_without_any_machine_that_works_there_is_no_worker(tmp_path: Path) -> None:
    for config, lost in ((setup(), (1,)), (setup(unusable="it has no torch"), ())):
        w = WorkerProcess(config, ElsewhereTransport(*lost))
        with pytest.raises(WorkerUnavailable, match="node 3: "):
            w.start()
        w.close()


def test_compiled_code_is_removed_when_it_takes_much_space(
    worker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_CACHE_BYTES", 100)
    for name, size in (("worker-0", 90), ("worker-1", 110)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel").write_bytes(b"x" * size)
        made = worker(replace(setup(), cache=tmp_path / name))
        made.start()
        made.close()
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["worker-0", "kernel", "worker-1"]
