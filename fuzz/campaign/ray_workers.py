"""`--ray`: workers on the nodes of a Ray cluster. The threads of the campaign stay in this process.

An actor on a node hosts a worker process and forwards its messages. If the process dies, its
case gets a verdict, as on one machine. A lost actor says nothing about its case, which is judged again.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fuzz.ask.transport import MachineLost, PipeTransport, Transport, WorkerUnavailable
from fuzz.ask.worker_config import ROOT, WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.campaign.options import require_space
from fuzz.protocol import Hello, StageStarted
from fuzz.protocol.exits import find_last_words
from fuzz.protocol.failures import ProcessLost
from generators.errors import UserError

WORKERS_PER_GPU = 8
"""A worker takes 2 GiB of a GPU's memory and waits for the compiler most of its time."""
NO_WORKER_SECONDS = 1200.0
"""A campaign ends if a worker has no place and no worker answered for this long. A cloud adds a node in minutes."""
_EXCHANGE_SECONDS = 1.0
_STAGE = StageStarted.kind.encode()
_LEFT_AT_HOME = [".git", ".venv", "/runs", "/build", "/docs", "/reports", "/corpus/found"]

ReadOutcome = bytes | MemoryError | None
"""The result or exception of `PipeTransport.read`."""


class WorkerHost(PipeTransport):
    """The actor: pipes to a process of its node. Its directory is removed whatever ends it."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(tempfile.mkdtemp(prefix="attnfuzz-ray-"))
        # When this process ends, Ray kills its children, but not its grandchildren. The closed pipe makes `cat` end.
        command = ["sh", "-c", 'exec 3<&0; (cat <&3; rm -rf "$0") &', str(self._directory)]
        self._janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._janitor.wait()

    def name_node(self) -> str:
        """The name of the node."""
        return f"node {os.uname().nodename}"

    def start(self, config: WorkerConfig) -> None:
        super().start(replace(config, python=config.python or sys.executable, cache=self._directory / "cache"))

    def exchange(self, line: bytes | None, seconds: float) -> list[ReadOutcome]:
        """Send `line`, if any. Returns lines until a line is no `StageStarted`, or `seconds` are over.

        Raises `DiskFull`.
        """
        lines, deadline = list[ReadOutcome](), time.monotonic() + seconds
        require_space(self._directory)
        if line is not None:
            with suppress(OSError):  # The process is gone, and the next line is None.
                self.write(line)
        try:
            # The kind stands first in a message.
            while not lines or (isinstance(lines[-1], bytes) and _STAGE in lines[-1][:32]):
                lines.append(self.read(deadline))
        except TimeoutError:
            pass
        except MemoryError as error:
            lines.append(error)
        return lines


class RayTransport(Transport):
    """Lines to and from a process on some node, through an actor. Another actor takes the place of a lost actor."""

    def __init__(self, cluster: "RayCluster") -> None:
        self.machine = "a node of the Ray cluster"
        self._cluster = cluster
        self._actor: Any = None
        self._placing: Any = None  # the call that names the node when the actor runs; None afterwards
        self._exchange: Any = None  # the call that sends the last line, until its lines are asked for
        self._lines = deque[ReadOutcome]()

    def is_placed(self) -> bool:
        """Whether the actor runs on a node; asks for an actor.

        Raises `WorkerUnavailable` when the campaign has long had no worker.
        """
        if self._actor is None:
            self._actor = self._cluster.host.remote()
            self._placing = self._actor.name_node.remote()
        if self._placing is None:
            return True
        if not ray.wait([self._placing], timeout=0)[0]:
            self._cluster.require_worker()
            return False
        with suppress(MachineLost):  # `start` reports it.
            self.machine = self._wait_for(self._placing)
        self._placing = None
        return True

    def start(self, config: WorkerConfig) -> None:
        self._forget()
        # The Python of a node has the same version, and a path of its own.
        python = "" if config.python == sys.executable else config.python
        self._wait_for(self._call("start", replace(config, python=python)))

    def write(self, line: bytes) -> None:
        self._exchange = self._call("exchange", line, _EXCHANGE_SECONDS)

    def read(self, deadline: float) -> bytes | None:
        while not self._lines:
            seconds = min(deadline - time.monotonic(), _EXCHANGE_SECONDS)
            if self._exchange is None and seconds <= 0:
                raise TimeoutError
            call, self._exchange = self._exchange or self._call("exchange", None, seconds), None
            self._lines.extend(self._wait_for(call))
        line = self._lines.popleft()
        if isinstance(line, MemoryError):
            raise line
        return line

    def wait(self, seconds: float, *, abort: bool = False) -> tuple[int | None, list[str]]:
        code, lines = self._wait_for(self._call("wait", seconds, abort=abort))
        return code, lines

    def end(self) -> None:
        self._forget()
        with suppress(MachineLost, RayError):
            self._call("end")

    def kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def _forget(self) -> None:
        self._exchange = None
        self._lines.clear()

    def _call(self, method: str, *arguments: object, **options: object) -> Any:
        actor = self._actor
        if actor is None:
            raise MachineLost("its actor was ended")
        return getattr(actor, method).remote(*arguments, **options)

    def _wait_for(self, call: Any) -> Any:
        try:
            # The actor normally answers within seconds, but it may hang.
            answer = ray.get(call, timeout=NO_WORKER_SECONDS)
        except RayTaskError as error:
            if not isinstance(error.cause, UserError | OSError):
                raise
            raise MachineLost(str(error.cause)) from None
        except RayError as error:
            reason = find_last_words(str(error).splitlines()) or type(error).__name__
            raise MachineLost(reason) from error
        self._cluster.last_answer = time.monotonic()
        return answer


class RayCluster:
    """A connection to a Ray cluster. `workers`: by default as many as fit. `each`: the actors of a worker.

    Raises `UserError`.
    """

    def __init__(self, address: str, config: WorkerConfig, workers: int | None, each: int) -> None:
        _connect(address)
        total = ray.cluster_resources()
        # A worker reserves half its limit, since workers rarely reach their limits at the same time.
        demand = {"CPU": 1.0, "memory": float(config.memory_mib * 2**19)}
        if config.device == "cuda":
            demand["GPU"] = 1 / WORKERS_PER_GPU
        places = int(min(total.get(name, 0.0) / amount + 1e-6 for name, amount in demand.items()))
        self.workers = workers or max(1, places // each)
        self._demand = ", ".join(f"{name} {amount:.4g}" for name, amount in demand.items())
        if places < each:
            sys.stderr.write(f"waiting for a node of the Ray cluster with a place for a worker, {self._demand}\n")
        self._torch: dict[str, str] = {}  # by interpreter, the torch version of its first worker
        self.last_answer = time.monotonic()
        gpu, memory = demand.get("GPU", 0.0), int(demand["memory"])
        self.host = ray.remote(num_cpus=1, num_gpus=gpu, memory=memory)(WorkerHost)

    def open_worker(
        self,
        config: WorkerConfig,
        on_start: Callable[[Hello], None] = lambda hello: None,
        on_death: Callable[[str | ProcessLost], None] = lambda reason: None,
    ) -> WorkerProcess:
        """A worker that will run on some node."""

        def require_version(hello: Hello) -> None:
            wanted = self._torch.setdefault(config.python, hello.torch)
            if hello.torch != wanted:
                raise MachineLost(f"a node has torch {hello.torch}, the campaign {wanted}")
            on_start(hello)

        return WorkerProcess(config, RayTransport(self), require_version, on_death)

    def require_worker(self) -> None:
        """Raises `WorkerUnavailable` if no worker answered for `NO_WORKER_SECONDS`."""
        if time.monotonic() - self.last_answer > NO_WORKER_SECONDS:
            raise WorkerUnavailable(f"no node of the Ray cluster has a place for a worker, {self._demand}")

    def close(self) -> None:
        """Leave the cluster, which ends the actors. A cluster that was started here ends."""
        ray.shutdown()


def _connect(address: str) -> None:
    # The memory monitor of a cluster that is started here would kill actors for the memory of other workers.
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
