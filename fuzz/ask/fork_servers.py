"""Fork servers, which start workers without importing torch again (see fuzz/check/fork_server.py).

There is a server for each interpreter, device and environment. A server without workers ends when another is needed.
"""

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from contextlib import suppress
from typing import IO

from fuzz.ask.worker_config import ROOT, WORKER, WorkerConfig

_READ_LATE = frozenset(
    {
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_VISIBLE_DEVICES",
        "PYTEST_CURRENT_TEST",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    }
)
"""Variables that libraries read when they are used, not when they are imported."""
_STATUS = struct.Struct("=ci")


class ForkedProcess:
    """A worker that a server forks, with the part of `subprocess.Popen` that transports use. Any thread may call it."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], status: IO[bytes]) -> None:
        self.stdin, self.stdout, self.status = stdin, stdout, status
        self.pid = 0  # until the worker leads its process group
        self.returncode: int | None = None  # that of SIGKILL if the server has ended first
        self._is_cancelled = False
        self._lock = threading.Lock()

    @property
    def is_refused(self) -> bool:
        """Whether the server has ended without starting it."""
        return self.poll() is not None and not self.pid and not self._is_cancelled

    def poll(self) -> int | None:
        """The exit code; None while the worker runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        while self.returncode is None:
            if not select.select([self.status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(WORKER, timeout or 0.0)
            with self._lock:
                self._read_status()
        return self.returncode

    def _read_status(self) -> None:
        if self.returncode is not None or not select.select([self.status], [], [], 0.0)[0]:
            return  # Another thread has read it.
        message = self.status.read(_STATUS.size)
        kind, number = _STATUS.unpack(message) if message else (b"x", -signal.SIGKILL)
        if kind == b"p":
            self.pid = number
        else:
            self.returncode = number

    def send_signal(self, number: int) -> None:
        """Send a signal to a worker that runs."""
        if self.poll() is None and self.pid:
            os.kill(self.pid, number)

    def cancel(self) -> bool:
        """Give up a worker that has not started. Returns False if it has."""
        self.poll()
        with self._lock:
            if self.returncode is None and not self.pid:
                self._is_cancelled, self.returncode = True, -signal.SIGKILL
                self.status.close()  # The worker ends when it can't report its pid.
            return not self.pid


class ForkServer:
    """One server, started when it is needed."""

    def __init__(self, config: WorkerConfig) -> None:
        self._command = [config.python, "-m", "fuzz.check.fork_server", "--device", config.device]
        self._environment = _without_late(config.environment())
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.is_usable = True  # False if the server has ended by itself
        self.workers: list[ForkedProcess] = []
        """The workers that have not ended."""

    def fork(self, config: WorkerConfig, log: int) -> ForkedProcess | None:
        """Start a worker. None if the server is not usable."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        if not self._is_running(log) or self._socket is None:
            return None
        request = {"arguments": config.module_arguments(), "environment": config.environment()}
        (stdin, to_worker), (from_worker, stdout), (status, report) = os.pipe(), os.pipe(), os.pipe()
        read_end, status_end = (os.fdopen(end, "rb", buffering=0) for end in (from_worker, status))
        process = ForkedProcess(os.fdopen(to_worker, "wb"), read_end, status_end)
        descriptors = [stdin, stdout, log, report]
        with suppress(OSError):  # The server has just ended, so the worker is refused.
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        for descriptor in (stdin, stdout, report):
            os.close(descriptor)
        self.workers.append(process)
        return process

    def _is_running(self, log: int) -> bool:
        code = self._server.poll() if self._server is not None else -signal.SIGKILL
        self.is_usable &= code is None or code < 0
        if code is None or not self.is_usable:
            return self.is_usable
        self.close()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._server = subprocess.Popen(
                    self._command,
                    cwd=ROOT,
                    env=self._environment,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError:
                self.is_usable = False
        return self.is_usable

    def close(self) -> None:
        """End the server, and its workers."""
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()


_servers: dict[tuple[str, str, frozenset[tuple[str, str]]], ForkServer] = {}
_lock = threading.Lock()


@atexit.register
def _close() -> None:
    for server in _servers.values():
        server.close()


def is_forkable(config: WorkerConfig) -> bool:
    """Whether a server starts such workers, unless it has ended by itself."""
    return config.is_forked and config.command is None and config.module == WORKER


def start(config: WorkerConfig, log: int) -> ForkedProcess | None:
    """Start a worker that is forkable. None if its server has ended by itself."""
    key = config.python, config.device, frozenset(_without_late(config.environment()).items())
    with _lock:
        for other in [other for other in _servers if other != key]:
            if all(worker.poll() is not None for worker in _servers[other].workers) and _servers[other].is_usable:
                _servers.pop(other).close()
        if key not in _servers:
            _servers[key] = ForkServer(config)
        return _servers[key].fork(config, log)


def _without_late(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _READ_LATE}
