"""Transports start a worker process, carry messages to and from it, and end it. Here: the interface, and pipes.

`WorkerProcess` interprets the messages. To add a transport, add a class with the methods of `Transport`.
"""

import ctypes
import os
import secrets
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fuzz.ask import fork_servers
from fuzz.ask.fork_servers import ForkedProcess
from fuzz.ask.worker_config import ROOT, WorkerConfig
from generators.errors import UserError

_POLL_SECONDS = 0.2
_LIMIT_MARGIN = 1.2
"""The process may exceed its limit by this factor. The worker limits its own data, and an exception says more than a
kill, but libraries and children come on top."""
_LOG_BYTES = 4 * 2**20
_TAIL_BYTES = 16384
_COPY_BYTES = 2**20
_CACHE_BYTES = 2 * 2**30
_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_LIBC = ctypes.CDLL(None)
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class WorkerUnavailable(UserError):
    """No worker can be started."""


class CompilersOff(WorkerUnavailable):
    """A worker that runs can't judge the subjects that it is asked about: their compiler is switched off."""


class MachineLost(Exception):
    """The machine of a worker is gone or can't be used."""


class Transport(Protocol):
    """Runs one worker process at a time. A single thread calls it, except for `kill`.

    Every method of a transport to other machines may raise `MachineLost`.
    """

    machine: str
    """Where the process runs: "" for this machine, or the name of another machine, which may change after `kill`."""

    stage: str = "start"
    """The first stage of a process, until it names a stage itself."""

    def is_placed(self) -> bool:
        """Whether there is a machine for a process. If there is none, requests a machine."""

    def start(self, config: WorkerConfig) -> None:
        """Start a process in place of an earlier process. Raises `WorkerUnavailable`."""

    def write(self, line: bytes) -> None:
        """Send a line without waiting for an answer. May raise `OSError` when the process has ended."""

    def read(self, deadline: float) -> bytes | None:
        """The next line, or None at the end of the stream. Raises `TimeoutError` at `deadline` (of `time.monotonic`).

        Raises `MemoryError` when the process and its children hold more memory than the configuration allows.
        """

    def wait(self, seconds: float, *, abort: bool = False) -> tuple[int | None, list[str]]:
        """Wait `seconds` for the process to end. `abort`: send SIGABRT, at which a worker dumps its stack.

        Returns the exit code as `subprocess` gives it, None while the process runs, and the last lines of standard
        error since the last `start` or `write`.
        """

    def end(self) -> None:
        """End the process and its children."""

    def kill(self) -> None:
        """End the process and its children, and leave the machine. Any thread may call it."""


class PipeTransport(Transport):
    """A child process that leads a session of its own, with pipes to its stdin and stdout."""

    machine = ""

    def __init__(self, on_fork_refused: Callable[[], None] = lambda: None) -> None:
        """`on_fork_refused` is called when a process is started alone because its fork server has ended by itself."""
        self._config = WorkerConfig()
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._buffer = b""
        self._since = 0.0  # when the last line was sent
        self._log: WorkerLog | None = None
        self._on_fork_refused = on_fork_refused

    def is_placed(self) -> bool:
        return True

    def start(self, config: WorkerConfig) -> None:
        self.end()
        self._config, self._buffer = config, b""
        if config.log is not None:
            config.log.parent.mkdir(parents=True, exist_ok=True)
        if config.cache is not None:
            _bound_size(config.cache)
            config.cache.mkdir(parents=True, exist_ok=True)
        self._launch(fork_servers.is_forkable(config))

    def _launch(self, is_forked: bool) -> None:
        self._log = WorkerLog(self._config.log)
        forked = fork_servers.start(self._config, self._log.memory) if is_forked else None
        self._process = forked or self._start_alone(self._log.memory)
        self.stage = "importing torch" if forked else "start"  # a server is silent
        if forked is None and fork_servers.is_forkable(self._config):
            self._on_fork_refused()

    def _start_alone(self, log: int) -> subprocess.Popen[bytes]:
        config, argv = self._config, self._config.argv()
        try:
            return subprocess.Popen(
                argv,
                cwd=ROOT,
                env=config.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerUnavailable(f"interpreter {argv[0]!r} does not start: {error.strerror or error}") from error

    def write(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None and self._log is not None
        self._log.take_tail()
        self._since = time.monotonic()
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def read(self, deadline: float) -> bytes | None:
        while b"\n" not in self._buffer:
            process = self._process
            assert process is not None and process.stdout is not None and self._log is not None
            self._log.copy()
            wait = min(deadline - time.monotonic(), _POLL_SECONDS)
            if wait <= 0:
                raise TimeoutError
            # A process that it forked may hold the pipe open.
            is_gone = process.poll() is not None
            if isinstance(process, ForkedProcess) and process.is_refused:
                self.end()
                self._launch(is_forked=False)
                continue
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            if not poll.poll(0 if is_gone else wait * 1000):
                if is_gone:
                    return None
                # In a container, session 0 has the processes that began outside it.
                held_mib = _SESSIONS.read_mib(process.pid, self._since) if process.pid else 0.0
                if held_mib > self._config.memory_mib * _LIMIT_MARGIN:
                    raise MemoryError
                continue
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data and (is_gone or process.pid):
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def wait(self, seconds: float, *, abort: bool = False) -> tuple[int | None, list[str]]:
        process = self._process
        assert process is not None and self._log is not None
        if abort:
            process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode, self._log.take_tail()

    def end(self) -> None:
        self.kill()
        if self._log is not None:
            self._log.close()
        process, self._process, self._log = self._process, None, None
        for pipe in (process.stdin, process.stdout, getattr(process, "status", None)) if process is not None else ():
            with suppress(OSError):  # Unsent bytes to a dead process.
                if pipe is not None:
                    pipe.close()

    def kill(self) -> None:
        process = self._process
        if process is None or (isinstance(process, ForkedProcess) and process.cancel()):
            return
        with suppress(ProcessLookupError, PermissionError):  # The whole group has ended.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class WorkerLog:
    """Output of a process: in memory, so that a full disk stops no print, and from there in a file.

    A long file loses all but its end, and says so.
    """

    def __init__(self, path: Path | None) -> None:
        self.memory = os.memfd_create("worker log")
        """The file descriptor that the process writes to."""
        self._file = (path or Path(os.devnull)).open("ab", buffering=0)
        self._copied, self._tail = 0, b""

    def take_tail(self) -> list[str]:
        """The last lines since the last call."""
        self.copy()
        tail, self._tail = self._tail, b""
        return tail.decode(errors="replace").splitlines()

    def copy(self) -> None:
        """Move new output from memory to the file."""
        while data := os.pread(self.memory, _COPY_BYTES, self._copied):
            self._copied += len(data)
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            # Cutting the memory file would lose output since `pread`.
            _LIBC.fallocate(self.memory, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(self._copied))
            with suppress(OSError):  # A campaign notices a full disk elsewhere.
                self._file.write(data)
                if self._file.tell() > _LOG_BYTES:
                    self._file.truncate(0)
                    self._file.write(b"[the beginning is left out: this log was too long]\n" + self._tail)

    def close(self) -> None:
        self.copy()
        self._file.close()
        os.close(self.memory)


class _Sessions:
    """MiB resident by session of this machine, read at most once a second.

    The thread of each worker asks several times a second. Reading /proc takes 2 ms, and far longer in some sandboxes:
    the pause after a reading is 20 times as long as it took, up to 10 s.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._held: dict[int, float] = {}
        self._began = self._next = 0.0

    def read_mib(self, session: int, since: float) -> float:
        """The MiB of a session as last read; 0 if that was before `since`. A thread waits for no other that reads."""
        if time.monotonic() >= self._next and self._reading.acquire(blocking=False):
            try:
                began = time.monotonic()
                self._held, self._began = _read_proc(), began
                self._next = began + min(10.0, max(1.0, 20 * (time.monotonic() - began)))
            finally:
                self._reading.release()
        return self._held.get(session, 0.0) if self._began >= since else 0.0


_SESSIONS = _Sessions()


def _read_proc() -> dict[int, float]:
    sessions: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended.
            # The name is in parentheses and may hold anything, spaces and parentheses included.
            fields = stat.read_bytes().rpartition(b")")[2].split()
            session = int(fields[3])
            sessions[session] = sessions.get(session, 0.0) + int(fields[21]) * _PAGE_MIB
    return sessions


def _bound_size(cache: Path) -> None:
    """Remove a directory of compiled code if it is large: all of it, since a part of an entry would fail to load."""
    if sum(path.lstat().st_size for path in cache.rglob("*")) > _CACHE_BYTES:
        doomed = cache.rename(cache.with_name(f"{cache.name}-{secrets.token_hex(4)}"))
        shutil.rmtree(doomed, ignore_errors=True)
