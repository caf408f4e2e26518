"""Worker processes: start one, ask it, and turn its death, hang or hunger into a verdict on the case."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from packaging.version import InvalidVersion, Version

from fuzz.campaign import crash_reason
from fuzz.campaign.memory import session_rss_mib
from fuzz.protocol import (
    EAGER,
    NOISE,
    PROTOCOL_VERSION,
    REFERENCE,
    Check,
    Exit,
    Hello,
    Message,
    ProtocolError,
    Result,
    Stage,
    SubjectResult,
    Unusable,
    Verdict,
    from_json,
)
from fuzz.protocol.controls import Control
from generators.errors import UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, source

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: workers import `fuzz` from here."""

START_SECONDS = 180.0
"""How long a worker may take to say hello: importing torch from a cold disk takes most of a minute."""

_POLL_SECONDS = 0.2
_DUMP_SECONDS = 2.0
_END_SECONDS = 5.0
_FAULT = 3
"""What a worker exits with (fuzz/check/worker.py) where it fails itself."""
_FAULT_LINES = 30
_LIMIT_MARGIN = 1.2
"""The worker limits its own data, and an exception says more than a kill: libraries and children come on top."""
_LOG_BYTES = 4 * 2**20
_OWN_STAGES = ("start", EAGER, REFERENCE, NOISE)


@dataclass(frozen=True, slots=True)
class Setup:
    """How workers are started. `timeout`: seconds one stage of a case may take; `memory_mib`: resident memory a
    worker and its children may take; `named`: subjects given as `package.module:function`; `command`: what to run
    instead of the worker of this checkout; `module` is what that runs, `arguments` what it is told besides."""

    python: str = sys.executable
    device: str = "cpu"
    named: tuple[str, ...] = ()
    timeout: float = 60.0
    memory_mib: int = 4096
    command: tuple[str, ...] | None = None
    module: str = "fuzz.check.worker"
    arguments: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The command line of a worker."""
        if self.command is not None:
            return [*self.command, *self.arguments]
        argv = [self.python, "-m", "fuzz.campaign.parent_watch", str(os.getpid()), self.module]
        argv += ["--device", self.device]
        argv += ["--memory-limit", str(self.memory_mib)]
        for name in self.named:
            argv += ["--subject", name]
        return [*argv, *self.arguments]

    def environment(self, cache: Path | None) -> dict[str, str]:
        """The environment of a worker whose compiled code is kept in `cache`."""
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
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache.absolute())  # workers are elsewhere
        return environment


def public_version(torch: str) -> str:
    """A torch version without its build: 2.13.0 for 2.13.0+cpu."""
    try:
        return Version(torch).public
    except InvalidVersion:
        return torch


class WorkerFault(RuntimeError):
    """A worker ended because of a fault of ours: nothing is said of the case. The text: in which stage, and its last lines."""


def request(
    case: Case, subjects: tuple[str, ...], repeat: int = 2, *, located: bool = False, controls: tuple[Control, ...] = ()
) -> Check:
    """What a worker is asked to judge `case` under `subjects`; `located`: with maps of the errors."""
    return Check(
        id=0,
        source=source(case),
        subjects=subjects,
        training=case.training,
        dynamic=case.dynamic,
        random=is_random(case),
        repeat=repeat,
        stand_in=emit_attention_stub(case) if case.contracts else None,
        located=located,
        controls=controls,
    )


class Worker:
    """One worker process at a time, started when it is needed and replaced when it is gone.

    Only one thread may ask; `kill` may be called from any other. `log` collects its stderr; `cache` keeps its
    compiled code over restarts (a first compile costs 10 to 20 s).
    """

    def __init__(
        self,
        setup: Setup,
        cache: Path | None = None,
        log: Path | None = None,
        started: Callable[[Hello], None] = lambda hello: None,
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.setup, self.cache, self.log = setup, cache, log
        self.hello: Hello | None = None
        self.checks = 0
        """Checks answered since the process started."""
        self.first_mib = 0.0
        """Resident memory of the process after its first check: with CUDA 2 GiB before any case has left something behind."""
        self._started, self._died = started, died
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
        argv = self.setup.argv()
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
        self._stderr = self._open_log()
        self._buffer, self.checks = b"", 0
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=self.setup.environment(self.cache),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._release()
            raise UserError(f"interpreter {argv[0]!r} does not start: {error.strerror or error}") from error
        self.hello = self._read_hello(argv[0])
        self._started(self.hello)
        return self.hello

    def check(self, check: Check) -> Result:
        """Ask and wait. A process-level failure is a result too; the next check starts a new process."""
        self.send(check)
        return self.receive()

    def send(self, check: Check) -> None:
        """Hand over a check without waiting; `receive` gives its result. Raises `UserError` as `start` does."""
        self._id += 1
        line = replace(check, id=self._id).to_json().encode() + b"\n"
        for attempt in (1, 2):
            self.start()
            self._stage = "start"
            self._log_start = self._stderr.tell() if self._stderr else 0
            try:
                self._pipe().write(line)
                self._pipe().flush()
            except OSError as error:
                # It died between two cases; that accuses no case.
                self.kill()
                self._died("between two cases")
                if attempt == 2:
                    raise UserError(f"workers die as soon as they start: {self._last_words()}") from error
            else:
                return

    def receive(self) -> Result:
        """The result of the check handed over last. Raises `WorkerFault`."""
        began = deadline = time.monotonic()
        deadline += self.setup.timeout
        while True:
            try:
                message = self._message(deadline)
            except TimeoutError:
                text = f"no end after {self.setup.timeout:g} s{self._interrupted()}"
                return self._lost(Verdict.TIMEOUT, text, began)
            except MemoryError as error:
                return self._lost(Verdict.OUT_OF_MEMORY, f"{error}{self._interrupted()}", began)
            except ProtocolError as error:
                return self._lost(Verdict.WORKER_DIED, f"broke the protocol: {error}", began)
            if message is None:
                self._raise_fault()
                return self._lost(Verdict.WORKER_DIED, self._cause_of_death(), began)
            if isinstance(message, Stage) and message.id == self._id:
                self._stage = message.stage
                deadline = time.monotonic() + self.setup.timeout
            elif isinstance(message, Result) and message.id == self._id:
                self.checks += 1
                if self.checks == 1:
                    self.first_mib = message.rss_mib
                if message.spent:
                    self.kill()
                    self._died("its device is lost to it")
                return message

    def restart(self) -> Hello:
        """A fresh process, whatever state this one is in."""
        self.close()
        return self.start()

    def close(self) -> None:
        """Ask the process to end, and end it."""
        process = self._process
        if process is not None and process.poll() is None and process.stdin is not None:
            try:
                process.stdin.write(Exit().to_json().encode() + b"\n")
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

    def _pipe(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def _open_log(self) -> IO[bytes] | None:
        self._release()
        if self.log is None:
            return None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        long = self.log.exists() and self.log.stat().st_size > _LOG_BYTES
        return self.log.open("w+b" if long else "a+b")

    def _read_hello(self, python: str) -> Hello:
        try:
            message = self._message(time.monotonic() + START_SECONDS)
        except (TimeoutError, MemoryError, ProtocolError) as error:
            self.kill()
            raise UserError(f"the worker under {python} does not start: {error}") from error
        if isinstance(message, Hello) and message.protocol == PROTOCOL_VERSION:
            return message
        if isinstance(message, Unusable):
            reason = message.reason
        elif isinstance(message, Hello):
            reason = f"it speaks protocol {message.protocol}, this campaign {PROTOCOL_VERSION}"
        else:
            reason = self._cause_of_death()
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
                raise TimeoutError("it says nothing")
            if not poll.poll(wait * 1000):
                rss = session_rss_mib(process.pid)
                if rss > self.setup.memory_mib * _LIMIT_MARGIN:
                    raise MemoryError(f"used more than {self.setup.memory_mib} MiB")
                continue
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return from_json(line)

    def _lost(self, verdict: Verdict, message: str, began: float) -> Result:
        self.kill()
        self._died(message)
        seconds = time.monotonic() - began
        if self._stage in _OWN_STAGES:
            # Not compiled yet: that accuses eager or ourselves, so the case can't be judged.
            return Result(id=self._id, rejected=f"{verdict} in {self._stage}: {message}", results=(), seconds=seconds)
        lost = SubjectResult(subject=self._stage, verdict=verdict, message=message, seconds=seconds)
        return Result(id=self._id, rejected=None, results=(lost,), seconds=seconds)

    def _raise_fault(self) -> None:
        assert self._process is not None
        try:
            if self._process.wait(_END_SECONDS) != _FAULT:
                return
        except subprocess.TimeoutExpired:
            return
        self.kill()
        self._died(f"a fault of attnfuzz in {self._stage}: {self._last_words()}")
        lines = crash_reason.tail(self.log, self._log_start)[-_FAULT_LINES:]
        raise WorkerFault("\n".join([f"the worker failed in {self._stage}:", *lines]))

    def _cause_of_death(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its stream without ending"
        words = self._last_words()
        return (
            f"{crash_reason.how(code)}{' ' if words.startswith('in ') else ': '}{words}"
            if words
            else crash_reason.how(code)
        )

    def _last_words(self) -> str:
        return crash_reason.last_words(crash_reason.tail(self.log, self._log_start))

    def _interrupted(self) -> str:
        """End the process so that it writes down where it is; gives that, after a comma."""
        assert self._process is not None
        try:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(_DUMP_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # It is killed next.
        place = crash_reason.where(crash_reason.tail(self.log, self._log_start))
        return f", {place}" if place else ""
