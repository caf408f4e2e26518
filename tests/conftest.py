"""One thread for all tests, and one worker for those that take a real one as it is: its start takes seconds."""

import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from fuzz.ask import worker_process
from fuzz.ask.evaluator import Evaluator, open_evaluator
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from tests.check import planted, planted_attention

NAMED = (*planted.SUBJECTS, *planted_attention.SUBJECTS, "benchmarks.defects:statistics_without_mask")
# A busy machine is no fault of an example.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
OPENERS = ("fuzz.ask.evaluator", "triage.report.build", "triage.cluster.findings")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark tests that take the worker of all tests, or the process that forks scripts: they start a process."""
    for item in items:
        if not {"shared", "run_all"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.worker)


class Borrowed(Evaluator):
    """Leaves the worker to those who come after it."""

    def close(self) -> None:
        """Leave it."""


@pytest.fixture(autouse=True, scope="module")
def _as_in_a_worker() -> None:
    """A check's processor time decides how many dropout seeds it tries. A check collects garbage after an exception."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _time_is_up_where_a_fake_worker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so: no test waits for a limit of time that a busy machine may reach elsewhere."""
    read = PipeTransport.read

    def read_or_time_out(transport: PipeTransport, deadline: float) -> bytes | None:
        line = read(transport, deadline)
        if line == b'{"kind": "hangs"}':
            raise TimeoutError
        return line

    monkeypatch.setattr(PipeTransport, "read", read_or_time_out)
    monkeypatch.setattr(worker_process, "_DUMP_SECONDS", 60.0)  # a process that hangs dumps its stack


@pytest.fixture(scope="session")
def shared() -> Iterator[Evaluator]:
    """It has every planted subject."""
    with open_evaluator(WorkerConfig(timeout=120, memory_mib=8192, named=NAMED)) as made:
        yield made


@pytest.fixture
def one_worker(shared: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines that run in this process ask the worker of all tests, or one of another interpreter."""

    def borrow(config: WorkerConfig, *, own_cache: bool = True, **options: Any) -> Evaluator:
        if config.python != sys.executable:
            return open_evaluator(config, own_cache=own_cache, **options)
        return Borrowed(shared.process, **options)

    for module in OPENERS:
        monkeypatch.setattr(f"{module}.open_evaluator", borrow)
