"""One worker process: start it, send a check, receive the result, end it. Its death, hang or hunger is a result."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from fuzz import protocol
from fuzz.durations import parse_duration
from fuzz.process import explain_exit, find_last_words, find_place, read_tail, session_rss_mib
from fuzz.protocol import Check, Hello, Message, ProtocolError, Result, Stage, SubjectResult, Unusable, Verdict
from fuzz.protocol.failures import Process, ProcessLost
from fuzz.protocol.render import describe_failure
from fuzz.subjects import is_user_function
from generators.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: workers import `fuzz` from here."""

START_SECONDS = 180.0
"""How long a worker may take to say hello: importing torch from a cold disk takes most of a minute."""

MIN_MEMORY_MIB = 512

FAULT_CODE = 3
"""The exit code of a worker that fails itself (fuzz/check/worker.py)."""

_POLL_SECONDS = 0.2
_DUMP_SECONDS = 2.0
_END_SECONDS = 5.0
_FAULT_LINES = 30
_LIMIT_MARGIN = 1.2
"""The worker limits its own data, and an exception says more than a kill: libraries and children come on top."""
_LOG_BYTES = 4 * 2**20
_OWN_STAGES = ("start", protocol.EAGER, protocol.REFERENCE, protocol.NOISE)
_VERDICTS = {Process.TIMEOUT: Verdict.TIMEOUT, Process.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker is started.

    `named`: subjects given as `package.module:function`; `timeout`: seconds that one stage of a check may take;
    `memory_mib`: resident memory of the process and its children; `command`: what to run instead of the worker of this
    checkout; `module` and `arguments`: the module it runs, and further arguments.
    """

    python: str = sys.executable
    device: str = "cpu"
    named: tuple[str, ...] = ()
    timeout: float = 60.0
    memory_mib: int = 4096
    command: tuple[str, ...] | None = None
    module: str = "fuzz.check.worker"
    arguments: tuple[str, ...] = ()

    @classmethod
    def from_options(
        cls, python: str | None, device: str, subjects: Iterable[str], timeout: str, memory: int
    ) -> "WorkerConfig":
        """The configuration that options of a command line ask for. Raises `UserError`."""
        if memory < MIN_MEMORY_MIB:
            raise UserError(f"--memory must be at least {MIN_MEMORY_MIB} (importing torch takes 400 MiB), got {memory}")
        return cls(
            python=python or sys.executable,
            device=device,
            named=tuple(subject for subject in subjects if is_user_function(subject)),
            timeout=parse_duration(timeout, "timeout"),
            memory_mib=memory,
        )

    def argv(self) -> list[str]:
        """The command line of a worker."""
        if self.command is not None:
            return [*self.command, *self.arguments]
        argv = [self.python, "-m", "fuzz.process", str(os.getpid()), self.module, "--device", self.device]
        argv += ["--memory-limit", str(self.memory_mib)]
        return [*argv, *(word for name in self.named for word in ("--subject", name)), *self.arguments]

    def environment(self, cache: Path | None) -> dict[str, str]:
        """The environment of a worker that keeps compiled code in `cache`, unless the user says where it goes."""
        # A subject named by the user is imported from where they are.
        paths = [str(ROOT), *([str(Path.cwd())] if self.named else []), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if cache is not None:
            environment.setdefault(
                "TORCHINDUCTOR_CACHE_DIR", str(cache.absolute())
            )  # Workers run in another directory.
        return environment


class WorkerFault(RuntimeError):
    """A worker failed by a fault of attnfuzz, which says nothing of the case. The text: stage and end of its log."""


class WorkerProcess:
    """One process at a time, started when it is needed and replaced when it is gone.

    Only one thread may send and receive; `kill` may be called from any other. `log` collects its stderr; `cache` keeps
    its compiled code over restarts (a first compile costs 10 to 20 s).
    """

    def __init__(
        self,
        config: WorkerConfig,
        cache: Path | None = None,
        log: Path | None = None,
        on_start: Callable[[Hello], None] = lambda hello: None,
        on_death: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.config, self.cache, self.log = config, cache, log
        self.hello: Hello | None = None
        """What the process said when it started; None while there is none."""
        self.checks = 0
        """Checks answered since the process started."""
        self._on_start, self._on_death = on_start, on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._buffer = b""
        self._id = 0
        self._stage = "start"
        self._log_start = 0

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when it can't work here."""
        if self.hello is not None:
            return self.hello
        argv = self.config.argv()
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
        self._release()
        self._stderr = self._open_log()
        self._buffer, self.checks = b"", 0
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=self.config.environment(self.cache),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._release()
            raise UserError(f"interpreter {argv[0]!r} does not start: {error.strerror or error}") from error
        self.hello = self._read_hello(argv[0])
        self._on_start(self.hello)
        return self.hello

    def send(self, check: Check) -> None:
        """Hand over a check without waiting; `receive` gives its result. Raises `UserError` as `start` does."""
        self._id += 1
        line = replace(check, id=self._id).to_json().encode() + b"\n"
        for attempt in (1, 2):
            self.start()
            self._begin("start")
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except OSError as error:
                # It died between two cases; that accuses no case.
                self._discard("between two cases")
                if attempt == 2:
                    raise UserError(f"workers die as soon as they start: {find_last_words(self._log())}") from error
            else:
                return

    def receive(self) -> Result:
        """The result of the check sent last. Raises `WorkerFault`."""
        began = time.monotonic()
        while True:
            message = self.read(self.config.timeout)
            if isinstance(message, ProcessLost):
                return self._report_loss(message, began)
            if isinstance(message, Stage) and message.id == self._id:
                self._stage = message.stage
            elif isinstance(message, Result) and message.id == self._id:
                self.checks += 1
                if message.device_lost:
                    self._discard("its device is lost to it")
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
        if message is not None:
            return message
        assert self._process is not None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return ProcessLost(Process.PROTOCOL, "closed its output without ending")
        if code == FAULT_CODE and self.hello is not None:
            lines, stage = self._log(), self._stage
            self._discard(f"a fault of attnfuzz in {stage}: {find_last_words(lines)}")
            raise WorkerFault("\n".join([f"the worker failed in {stage}:", *lines[-_FAULT_LINES:]]))
        return explain_exit(code, self._log())

    def close(self) -> None:
        """Ask the process to end, and end it."""
        process = self._process
        if process is not None and process.poll() is None and process.stdin is not None:
            try:
                process.stdin.write(protocol.Exit().to_json().encode() + b"\n")
                process.stdin.close()
                process.wait(2.0)
            except (OSError, subprocess.TimeoutExpired):
                pass  # Then it is killed below.
        self.kill()
        self._release()

    def kill(self) -> None:
        """End the process and all it started, at once; a thread waiting in `receive` gets a result."""
        process = self._process
        if process is None:
            return
        try:
            # Before the leader is reaped, so that the group's number can't be somebody else's.
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # All of it has ended.
        process.wait()
        self.hello = None

    def _begin(self, stage: str) -> None:
        self._stage, self._log_start = stage, self._stderr.tell() if self._stderr else 0

    def _discard(self, reason: str) -> None:
        self.kill()
        self._on_death(reason)

    def _log(self) -> list[str]:
        return read_tail(self.log, self._log_start)

    def _report_loss(self, failure: ProcessLost, began: float) -> Result:
        text, stage, seconds = describe_failure(failure), self._stage, time.monotonic() - began
        self._discard(text)
        verdict = _VERDICTS.get(failure.how, Verdict.WORKER_DIED)
        if stage in _OWN_STAGES:
            # Not compiled yet: that accuses eager or ourselves, so the case can't be judged.
            return Result(id=self._id, rejected=f"{verdict} in {stage}: {text}", results=(), seconds=seconds)
        lost = SubjectResult(subject=stage, verdict=verdict, failure=failure, seconds=seconds)
        return Result(id=self._id, rejected=None, results=(lost,), seconds=seconds)

    def _release(self) -> None:
        self.hello = None
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:
                        pass  # Unsent bytes to a dead process.
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _open_log(self) -> IO[bytes] | None:
        if self.log is None:
            return None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        is_long = self.log.exists() and self.log.stat().st_size > _LOG_BYTES
        return self.log.open("w+b" if is_long else "a+b")

    def _read_hello(self, python: str) -> Hello:
        self._begin("start")
        message = self.read(START_SECONDS)
        if isinstance(message, Hello) and message.protocol == protocol.PROTOCOL_VERSION:
            return message
        if isinstance(message, Unusable):
            reason = message.reason
        elif isinstance(message, Hello):
            reason = f"it speaks protocol {message.protocol}, not {protocol.PROTOCOL_VERSION}"
        elif isinstance(message, ProcessLost):
            reason = describe_failure(message)
        else:
            reason = f"it says {message.type!r} first"
        self.kill()
        raise UserError(f"the worker under {python} can't be used: {reason}")

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
            if not poll.poll(wait * 1000):
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
