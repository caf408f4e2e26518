"""One worker process: start it, send a check, receive the result, end it. Being lost is a result too."""

import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fuzz import protocol
from fuzz.process import explain_exit, find_last_words, find_place, read_tail, session_rss_mib
from fuzz.protocol import (
    Check,
    Fault,
    Hello,
    Message,
    ProtocolError,
    Result,
    StageStarted,
    SubjectResult,
    Unusable,
    Verdict,
)
from fuzz.protocol.failures import Process, ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.worker_config import ROOT, WorkerConfig
from generators.errors import UserError

START_SECONDS = 120.0
"""How long each step of a start may take at least: importing torch takes most of a minute on a cold disk, and longer on
a busy machine."""

PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds to wait before a start that follows so many failed ones. After one more there is no worker."""

_POLL_SECONDS = 0.2
_DUMP_SECONDS = 2.0
_WAIT_SECONDS = 10.0
"""What a first start is at for longer is said on stderr."""
_END_SECONDS = 5.0
_LIMIT_MARGIN = 1.2
"""The worker limits its own data, and an exception says more than a kill: libraries and children come on top."""
_LOG_BYTES = 4 * 2**20
_CACHE_BYTES = 2 * 2**30
_OWN_STAGES = ("start", protocol.EAGER, protocol.REFERENCE, protocol.NOISE)
_VERDICTS = {Process.TIMEOUT: Verdict.TIMEOUT, Process.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY}


class WorkerFault(RuntimeError):
    """A worker failed by a fault of attnfuzz, which says nothing of the case. The text: stage and traceback."""


class WorkerUnavailable(UserError):
    """No worker can be started."""


class Stopped(Exception):
    """The worker was ended for good, so that what is unfinished stays as it was."""


class WorkerLost(Exception):
    """The worker went with its machine, which says nothing of what it was asked."""


class WorkerProcess:
    """One process at a time, started when it is needed and replaced when it is gone.

    A start that fails is repeated after a pause if an earlier one succeeded. Only one thread may send and receive;
    `kill` may be called from any other, and lets that thread raise `Stopped`. `log` collects its stderr; `cache` keeps
    its compiled code over restarts (a first compile costs 10 to 20 s).
    """

    repeats = 1
    """How often a check is sent again to a new process when somebody killed the one that had it."""

    def __init__(
        self,
        config: WorkerConfig,
        cache: Path | None = None,
        log: Path = Path(os.devnull),
        on_start: Callable[[Hello], None] = lambda hello: None,
        on_death: Callable[[str | ProcessLost], None] = lambda reason: None,
    ) -> None:
        self.config, self.cache, self.log = config, cache, log
        self.hello: Hello | None = None
        """What the process said when it started; None while there is none."""
        self.checks = 0
        """Checks answered since the process started."""
        self.variables: dict[str, str] = {}
        """What the environment of the next process has besides."""
        self.has_worked = False
        """Whether workers can be started, as far as is known."""
        self._failures = 0
        """Starts in a row after which no worker was of use."""
        self._killed = threading.Event()
        self._on_start, self._on_death = on_start, on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._id = 0
        self.stage = "start"
        """What the process does: waits for a check ("start", or "" after one), or a stage of one."""
        self.stage_began = time.monotonic()
        self._log_start = 0

    def is_placed(self) -> bool:
        """Whether it has a machine to run on; asks for one."""
        return True

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when none can be started, and `Stopped`."""
        while self.hello is None:
            pause = PAUSES[self._failures - 1] if self._failures else 0.0
            if self._killed.wait(pause):
                raise Stopped
            try:
                self.hello = self._start()
            except WorkerUnavailable as error:
                if not self.has_worked:
                    raise
                self.count_failure(str(error))
            else:
                self.has_worked = True
                self._on_start(self.hello)
        return self.hello

    def count_failure(self, reason: str | ProcessLost) -> None:
        """Note that the process was lost, which accuses no case. Raises `WorkerUnavailable` when that is too often, and
        `Stopped`."""
        self._discard(reason)
        self._failures += 1
        if self._failures > len(PAUSES):
            self.has_worked, self._failures = False, 0
            said = describe_failure(reason) if isinstance(reason, ProcessLost) else reason
            raise WorkerUnavailable(f"no worker starts any more, after {len(PAUSES) + 1} tries: {said}")

    def replace(self) -> None:
        """End the process; the next check starts another."""
        if self._process is not None and self._process.poll() is None and self._process.stdin is not None:
            try:
                self._process.stdin.write(protocol.Exit().to_json().encode() + b"\n")
                self._process.stdin.close()
                self._process.wait(2.0)
            except (OSError, subprocess.TimeoutExpired):
                pass  # Then it is killed below.
        self._end()
        self._release()

    def _start(self) -> Hello:
        self._release()
        if self._log_size() > _LOG_BYTES:
            self.log.write_bytes(b"")
        self._buffer, self.checks = b"", 0
        self._process = self._spawn()
        return self._read_hello(self.config.argv()[0])

    def _spawn(self) -> subprocess.Popen[bytes]:
        argv = self.config.argv()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.cache is not None:
            _bound_size(self.cache)
            self.cache.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                return subprocess.Popen(
                    argv,
                    cwd=ROOT,
                    env=self.config.environment(self.cache) | self.variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerUnavailable(f"interpreter {argv[0]!r} does not start: {error.strerror or error}") from error

    def send(self, check: Check) -> None:
        """Hand over a check without waiting; `receive` gives its result. Raises as `start` does."""
        self._id, self._check = self._id + 1, check
        line = replace(check, id=self._id).to_json().encode() + b"\n"
        while True:
            self.start()
            self._begin("start")
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except OSError:
                self.count_failure(f"it ended between two cases: {find_last_words(self._log())}")
            else:
                return

    def receive(self) -> Result:
        """The result of the check sent last. Raises `WorkerFault` and `Stopped`."""
        began, repeats = time.monotonic(), self.repeats
        while True:
            message = self.read(self.config.timeout)
            if isinstance(message, ProcessLost):
                if repeats and (message.detail == signal.SIGKILL.name or self.stage == "start"):
                    # The system and people kill processes, and one that has begun nothing accuses no case.
                    repeats -= 1
                    self.count_failure(message)
                    self.send(self._check)
                    continue
                return self._report_loss(message, began)
            self._failures = 0
            if isinstance(message, StageStarted) and message.id == self._id:
                self._enter(message.stage)
            elif isinstance(message, Result) and message.id == self._id:
                self.checks += 1
                self._enter("")
                if message.unfit:
                    self._discard(message.unfit)
                return message

    def read(self, seconds: float) -> Message | ProcessLost:
        """The next message, or how the process was lost within so many seconds. Raises `WorkerFault`."""
        try:
            message = self._message(time.monotonic() + seconds)
        except TimeoutError:
            return ProcessLost(Process.TIMEOUT, f"{seconds:g}", self._interrupt())
        except MemoryError:
            return ProcessLost(Process.OUT_OF_MEMORY, str(self.config.memory_mib), self._interrupt())
        except ProtocolError as error:
            return ProcessLost(Process.PROTOCOL, str(error))
        if isinstance(message, Fault):
            self._discard(f"a fault of attnfuzz in {self.stage}: {find_last_words(message.text.splitlines())}")
            raise WorkerFault(f"the worker failed in {self.stage}:\n{message.text.rstrip()}")
        if message is not None:
            return message
        assert self._process is not None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return ProcessLost(Process.PROTOCOL, "closed its output without ending")
        return explain_exit(code, self._log())

    def close(self) -> None:
        """Ask the process to end, and end it."""
        self.replace()

    def kill(self) -> None:
        """End the process and all it started, at once and for good."""
        self._killed.set()
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):  # All of it has ended.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.hello = None

    def _begin(self, stage: str) -> None:
        self._enter(stage)
        self._log_start = self._log_size()

    def _enter(self, stage: str) -> None:
        self.stage, self.stage_began = stage, time.monotonic()

    def _discard(self, reason: str | ProcessLost) -> None:
        self._end()
        if self._killed.is_set():
            raise Stopped
        self._on_death(reason)

    def _log(self) -> list[str]:
        return read_tail(self.log, self._log_start)

    def _report_loss(self, failure: ProcessLost, began: float) -> Result:
        text, stage, seconds = describe_failure(failure), self.stage, time.monotonic() - began
        self._discard(failure)
        verdict = _VERDICTS.get(failure.how, Verdict.WORKER_DIED)
        if stage in _OWN_STAGES:
            # Not compiled yet: that accuses eager or ourselves, so the case can't be judged.
            return Result(id=self._id, rejected=f"{verdict} in {stage}: {text}", results=(), seconds=seconds)
        lost = SubjectResult(subject=stage, verdict=verdict, failure=failure, seconds=seconds)
        return Result(id=self._id, rejected=None, results=(lost,), seconds=seconds)

    def _release(self) -> None:
        self.hello = None
        for pipe in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            with suppress(OSError):  # Unsent bytes to a dead process.
                if pipe is not None:
                    pipe.close()
        self._process = None

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _read_hello(self, python: str) -> Hello:
        self._begin("start")
        message: Message | ProcessLost = StageStarted(0, self.stage)
        while isinstance(message, StageStarted):
            self._enter(message.stage)
            text = f"waiting for the worker under {python} to start: {self.stage}\n"
            said = threading.Timer(_WAIT_SECONDS, sys.stderr.write, (text,))
            said.daemon = True  # An interrupt between two lines here must not wait for it.
            try:
                if not self.has_worked:
                    said.start()
                message = self.read(max(START_SECONDS, self.config.timeout))
            finally:
                said.cancel()
        if isinstance(message, Hello):
            return message
        if isinstance(message, Unusable):
            reason = message.reason
        elif isinstance(message, ProcessLost):
            reason = f"{self.stage}: {describe_failure(message)}"
        else:
            reason = f"it says {message.kind!r} first"
        self._end()
        raise WorkerUnavailable(f"the worker under {python} can't be used: {reason}")

    def _message(self, deadline: float) -> Message | None:
        """The next message, None at the end of the stream. Raises TimeoutError, MemoryError or ProtocolError."""
        process = self._process
        assert process is not None and process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        while b"\n" not in self._buffer:
            wait = min(deadline - time.monotonic(), _POLL_SECONDS)
            if wait <= 0:
                raise TimeoutError
            # A process that it forked may hold the pipe open.
            is_gone = process.poll() is not None
            if not poll.poll(0 if is_gone else wait * 1000):
                if is_gone:
                    return None
                if session_rss_mib(process.pid) > self.config.memory_mib * _LIMIT_MARGIN:
                    raise MemoryError
                continue
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return protocol.from_json(line)

    def _interrupt(self) -> str:
        """Abort the process so that it dumps its stack; gives the innermost place, "" without one."""
        assert self._process is not None
        try:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(_DUMP_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # It is killed next.
        return find_place(self._log())


def _bound_size(cache: Path) -> None:
    """Remove a directory of compiled code if it is large: all of it, since a part of an entry would fail to load."""
    if sum(path.lstat().st_size for path in cache.rglob("*")) > _CACHE_BYTES:
        doomed = cache.rename(cache.with_name(f"{cache.name}-{secrets.token_hex(4)}"))
        shutil.rmtree(doomed, ignore_errors=True)
