"""`--ray`: workers on the nodes of a Ray cluster. The threads of the campaign stay in this process.

An actor on a node hosts one worker process. What happens to that process is a verdict, as it is on one machine. A lost
actor says nothing of its case, which is asked again.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError, RayTaskError

from fuzz.campaign.options import require_space
from fuzz.process import find_last_words
from fuzz.protocol import Check, Hello, Result
from fuzz.protocol.failures import ProcessLost
from fuzz.worker_config import ROOT, WorkerConfig
from fuzz.worker_process import PAUSES, Stopped, WorkerFault, WorkerLost, WorkerProcess, WorkerUnavailable
from generators.errors import UserError

WORKERS_PER_GPU = 8
"""A worker takes 2 GiB of a GPU's memory and waits for the compiler most of its time."""
NO_WORKER_SECONDS = 1200.0
"""A campaign ends when a worker has no place and none has answered for so long: a cloud brings a node in minutes."""
_LEFT_AT_HOME = [".git", ".venv", "/runs", "/build", "/docs", "/reports", "/corpus/found"]


Answer = tuple[Result, list[Hello | str | ProcessLost], Hello | None, int]
"""A result, starts and deaths of the process since the last answer, its hello if it runs, and its checks so far."""


class WorkerHost:
    """The actor. Its directory is removed whatever ends it."""

    def __init__(self, config: WorkerConfig) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="attnfuzz-ray-"))
        # The pipe closes when this process ends. Ray kills its children then, not theirs.
        command = ["sh", "-c", 'exec 3<&0; (cat <&3; rm -rf "$0") &', str(self._directory)]
        self._janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._janitor.wait()
        self._events: list[Hello | str | ProcessLost] = []
        config = replace(config, python=config.python or sys.executable)
        cache, log = self._directory / "cache", self._directory / "worker.log"
        self._process = WorkerProcess(config, cache, log, self._events.append, self._events.append)

    def ask(self, check: Check | None, variables: dict[str, str], fresh: bool) -> Answer:
        """Judge a check, or only start the process; `fresh`: replace it first. Raises `WorkerFault`, and
        `WorkerUnavailable` where this node can't work."""
        process, result = self._process, Result(0, None, ())
        try:
            process.variables = variables
            if fresh:
                process.replace()
            if check is None:
                process.start()
            else:
                process.send(check)
                result = process.receive()
            require_space(self._directory)
        except (UserError, OSError) as error:
            raise WorkerUnavailable(f"node {os.uname().nodename}: {error}") from None
        events = self._events.copy()
        self._events.clear()
        return result, events, process.hello, process.checks


class RemoteWorker(WorkerProcess):
    """A worker on some node. One that is lost gets a new actor, and its thread a `WorkerLost`."""

    def __init__(self, cluster: "Cluster", config: WorkerConfig, *listeners: Callable[..., None]) -> None:
        super().__init__(config, None, Path(os.devnull), *listeners)
        self._cluster = cluster
        self._actor: Any = None
        self._placing: Any = None
        """The call that ends when the actor runs; None afterwards."""
        self._answer: Any = None
        self._fresh = False

    def is_placed(self) -> bool:
        """Whether its actor runs on a node; asks for one. Raises `Stopped`, and `WorkerUnavailable` when the campaign
        has long had no worker."""
        if self._killed.is_set():
            raise Stopped
        if self._actor is None:
            self._enter("waiting for a node")
            self._actor = self._cluster.host.remote(self.config)
            self._placing = self._actor.__ray_ready__.remote()
        if self._placing is not None and ray.wait([self._placing], timeout=0)[0]:
            self._placing = None
            self._enter("")
        elif self._placing is not None:
            self._cluster.require_worker()
        return self._placing is None

    def start(self) -> Hello:
        """Start the process unless it runs; waits for a node. Raises as `is_placed` and `receive`."""
        if self.hello is None:
            self.send(None)
            self.receive()
        assert self.hello is not None
        return self.hello

    def send(self, check: Check | None) -> None:
        """Hand over a check, or None for a start of the process, without waiting for the answer."""
        while not self.is_placed():
            if self._killed.wait(0.2):
                raise Stopped
        self._enter("start" if check is None else "judging")
        self._answer = self._actor.ask.remote(check, self.variables, self._fresh)
        self._fresh = False

    def receive(self) -> Result:
        """The result of the check sent last. Raises `WorkerFault`, `WorkerLost` and `Stopped`."""
        answer: Answer
        try:
            # It limits each stage of a check, but may hang itself.
            answer = ray.get(self._answer, timeout=NO_WORKER_SECONDS + 20 * self.config.timeout)
        except RayTaskError as error:
            if isinstance(error.cause, WorkerFault):
                self.hello = None
                raise error.cause from None
            if not isinstance(error.cause, WorkerUnavailable):
                raise
            self._lose(str(error.cause))
        except RayError as error:
            self._lose(find_last_words(str(error).splitlines()) or type(error).__name__)
        self._enter("")
        result, events, self.hello, self.checks = answer
        for event in events:
            if not isinstance(event, Hello):
                self._on_death(event)
                continue
            wanted = self._cluster.torch.setdefault(self.config.python, event.torch)
            if event.torch != wanted:
                self._lose(f"a node has torch {event.torch}, the campaign {wanted}")
            self._on_start(event)
        self.has_worked, self._failures, self._cluster.last_answer = True, 0, time.monotonic()
        return result

    def _lose(self, reason: str) -> NoReturn:
        """Give the actor up, and pause before the next. Raises `WorkerLost`, `Stopped`, or `WorkerUnavailable` when no
        worker ever started."""
        self._end()
        self._actor = self._placing = None
        if not (self.has_worked or self._killed.is_set()):
            raise WorkerUnavailable(f"no worker starts on the Ray cluster: {reason}")
        self._failures = min(self._failures + 1, len(PAUSES))
        if self._killed.wait(PAUSES[self._failures - 1]):
            raise Stopped
        self._on_death(reason)
        raise WorkerLost(reason)

    def replace(self) -> None:
        """Replace the process before the next check."""
        self.hello, self._fresh = None, True

    def _end(self) -> None:
        actor, self.hello = self._actor, None
        if actor is not None:
            ray.kill(actor)


class Cluster:
    """A connection to a Ray cluster. `workers`: by default as many as it has places for, with so many actors `each`.
    Raises `UserError`."""

    def __init__(self, address: str, config: WorkerConfig, workers: int | None, each: int) -> None:
        _connect(address)
        total = ray.cluster_resources()
        # The limits may add up to twice the memory: rarely do all workers reach them at once.
        demand = {"CPU": 1.0, "memory": float(config.memory_mib * 2**19)}
        if config.device == "cuda":
            demand["GPU"] = 1 / WORKERS_PER_GPU
        places = int(min(total.get(name, 0.0) / amount + 1e-6 for name, amount in demand.items()))
        self.workers = workers or max(1, places // each)
        self._demand = ", ".join(f"{name} {amount:.4g}" for name, amount in demand.items())
        if places < each:
            sys.stderr.write(f"waiting for a node of the Ray cluster with a place for a worker, {self._demand}\n")
        self.torch: dict[str, str] = {}
        """The torch version of each interpreter: that of its first worker."""
        self.last_answer = time.monotonic()
        gpu, memory = demand.get("GPU", 0.0), int(demand["memory"])
        self.host = ray.remote(num_cpus=1, num_gpus=gpu, memory=memory)(WorkerHost)

    def open_worker(self, config: WorkerConfig, *listeners: Callable[..., None]) -> RemoteWorker:
        """A worker that will run on some node; listeners as those of `WorkerProcess`."""
        # The nodes' Python has our version, not our path.
        return RemoteWorker(self, replace(config, python=config.python.replace(sys.executable, "")), *listeners)

    def require_worker(self) -> None:
        """Raises `WorkerUnavailable` when no worker has answered for long."""
        if time.monotonic() - self.last_answer > NO_WORKER_SECONDS:
            raise WorkerUnavailable(f"no node of the Ray cluster has a place for a worker, {self._demand}")

    def close(self) -> None:
        """Leave the cluster, which ends the actors; one that was started here ends."""
        ray.shutdown()


def _connect(address: str) -> None:
    # For a cluster that is started here: its monitor would kill actors for the memory of another's worker.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    terminate = signal.getsignal(signal.SIGTERM)  # Ray sets its own handler.
    given = None if address == "auto" else address
    host, _, port = (given or os.environ.get("RAY_ADDRESS", "")).rpartition(":")
    try:
        if port.isdigit():  # Ray tries for a quarter of an hour.
            socket.create_connection((host, int(port)), 10.0).close()
        ray.init(
            address=given,
            runtime_env={"working_dir": str(ROOT), "excludes": _LEFT_AT_HOME},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (RayError, RuntimeError, ValueError, OSError) as error:
        raise UserError(f"--ray {address}: {' '.join(str(error).split())}") from None
    finally:
        signal.signal(signal.SIGTERM, terminate)
