"""A worker that is forked is as fresh as a worker that starts alone, and is lost or ended in the same ways."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.ask import transport
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import ROOT, WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.protocol import Verdict
from generators.sampling.sample import sample
from tests.check import planted
from tests.evaluator.test_worker_process import HARMLESS, is_gone

pytestmark = pytest.mark.worker

LEAVES_STATE = """
import os, random, signal, sys, torch

SEEN = []

def attend(q, k, v, **options):
    found = [
        torch.get_default_dtype(), torch.nn.functional.silu is torch.relu, os.environ.get("LEFT"), len(SEEN),
        signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, "left" in sys.modules, torch.initial_seed(),
        torch._dynamo.config.suppress_errors,
    ]
    print(found, file=sys.stderr, flush=True)
    SEEN.append(1)
    torch.set_default_dtype(torch.float64)
    torch.nn.functional.silu = torch.relu
    os.environ["LEFT"] = "1"
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.modules["left"] = sys
    torch.manual_seed(7)
    torch._dynamo.config.suppress_errors = True
    return q
"""


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(cache=tmp_path / "cache", log=tmp_path / "log")


@pytest.fixture
def process(config: WorkerConfig) -> Iterator[WorkerProcess]:
    made = WorkerProcess(config, PipeTransport())
    yield made
    made.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_workers_of_one_configuration_have_one_server_and_lead_sessions_of_their_own(
    config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over tests, each of which pytest names in the environment; also with subjects of this directory."""
    with ExitStack() as stack:
        pids = list[int]()
        for named in ((), (), planted.SUBJECTS[:1]):
            monkeypatch.setenv("PYTEST_CURRENT_TEST", str(len(pids)))
            made = WorkerProcess(replace(config, named=named), PipeTransport())
            stack.callback(made.close)
            pids.append(made.start().pid)
        assert len({parent_of(pid) for pid in pids}) == 1 and parent_of(pids[0]) != os.getpid()
        assert [os.getsid(pid) for pid in pids] == pids
    assert all(map(is_gone, pids))


def test_a_process_has_the_state_of_one_that_starts_alone_whatever_its_predecessor_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: WorkerConfig
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVES_STATE)
    monkeypatch.chdir(tmp_path)
    attention = next(one for index in range(50) if (one := sample(7, index)).contracts and not one.training)
    found = list[str]()
    for is_forked in (True, True, False):
        log = tmp_path / f"log-{len(found)}"
        own = replace(config, named=("leaving:attend",), is_forked=is_forked, log=log)
        with open_evaluator(own) as evaluator:
            evaluator.ask(Question(attention, ("leaving:attend",)))
        found.append(log.read_text().splitlines()[0])
    assert found[0] == found[1] == found[2]


def test_a_worker_that_is_killed_is_lost_and_the_next_comes_from_the_same_server(process: WorkerProcess) -> None:
    first = process.start().pid
    server = parent_of(first)
    os.kill(first, signal.SIGKILL)
    process.send(HARMLESS)
    assert process.receive().results[0].verdict is Verdict.OK
    assert parent_of(process.start().pid) == server


def test_a_server_that_is_killed_takes_its_workers_along_and_is_started_again(process: WorkerProcess) -> None:
    first = process.start().pid
    server = parent_of(first)
    os.kill(server, signal.SIGKILL)
    assert is_gone(first)
    process.send(HARMLESS)
    assert process.receive().results[0].verdict is Verdict.OK
    assert parent_of(process.start().pid) not in (server, os.getpid())


def test_without_a_usable_server_a_worker_starts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: WorkerConfig
) -> None:
    # Python runs sitecustomize before all else. A fork breaks threads.
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    text = f"import sys, threading\nif 'fuzz.check.fork_server' in sys.orig_argv: {thread}\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    refused = list[bool]()
    transport = PipeTransport(on_fork_refused=lambda: refused.append(True))
    made = WorkerProcess(config, transport)
    assert parent_of(made.start().pid) == os.getpid()
    assert len(refused) == 1
    transport.start(config)
    assert len(refused) == 2
    made.close()


def test_a_worker_that_waits_for_its_server_is_at_a_stage_that_has_a_name(config: WorkerConfig) -> None:
    transport = PipeTransport()
    assert transport.stage == "start"
    transport.start(config)
    assert transport.stage == "importing torch"
    transport.end()


def test_a_worker_that_waits_for_its_server_can_be_ended(monkeypatch: pytest.MonkeyPatch, config: WorkerConfig) -> None:
    monkeypatch.setenv("ATTNFUZZ_TEST", "it gets a server that has to start")
    transport = PipeTransport()
    transport.start(config)
    transport.kill()
    assert transport.read(time.monotonic() + 60) is None
    transport.end()


def test_a_worker_that_waits_for_its_server_holds_no_memory(
    monkeypatch: pytest.MonkeyPatch, config: WorkerConfig
) -> None:
    # A worker has no pid before it is forked, and session 0 has processes in a container.
    monkeypatch.setenv("ATTNFUZZ_TEST", "it gets a server that has to start")
    monkeypatch.setattr(transport, "_SESSIONS", FullSessions())
    made = WorkerProcess(config, PipeTransport())
    made.start()
    made.close()


class FullSessions(transport._Sessions):
    """Much memory in session 0, and as much as there is in others."""

    def read_mib(self, session: int, since: float) -> float:
        return super().read_mib(session, since) if session else 1e6


def test_nothing_is_left_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    lines = (
        "from fuzz.ask.evaluator import open_evaluator",
        "from fuzz.ask.worker_config import WorkerConfig",
        "print(open_evaluator(WorkerConfig()).hello.pid, flush=True)",
        "input()",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        server = parent_of(worker)
        parent.kill()
    assert is_gone(worker) and is_gone(server)
