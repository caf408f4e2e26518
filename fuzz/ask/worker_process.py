"""A worker process as callers see it: send a check, receive its result. A lost process is a result too.

Here are the order of messages, the time limits, and why a process was lost; a `Transport` carries the messages.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from fuzz import protocol
from fuzz.ask.transport import CompilersOff, MachineLost, Transport, WorkerUnavailable
from fuzz.ask.worker_config import WorkerConfig
from fuzz.cli import wrap
from fuzz.protocol import (
    Check,
    Drawn,
    Hello,
    Message,
    Observation,
    Result,
    StageStarted,
    SubjectResult,
    Unusable,
    Verdict,
)
from fuzz.protocol.exits import explain_exit, find_last_words, find_place
from fuzz.protocol.failures import Process, ProcessLost
from fuzz.protocol.render import describe_failure

START_SECONDS = 120.0
"""How long each step of a start may take at least: importing torch takes most of a minute on a cold disk, and longer on
a busy machine."""

PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds to wait after each failed start in a row. After one more failed start there is no worker."""

DRAW_SECONDS = 60.0
"""How long libFuzzer may take to draw a case: many times its usual time."""

_DUMP_SECONDS = 2.0
_EXIT_SECONDS = 2.0
_END_SECONDS = 5.0
_PLACE_SECONDS = 0.2
_WAIT_SECONDS = 10.0
"""A longer first start is reported on stderr."""
_WAITING = "waiting for a node"
_OWN_STAGES = ("start", protocol.EAGER, protocol.REFERENCE, protocol.NOISE)
_VERDICTS = {Process.TIMEOUT: Verdict.TIMEOUT, Process.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY}


class WorkerFault(RuntimeError):
    """A worker failed by a fault of attnfuzz, which says nothing about the case. The text: stage and traceback."""


class Stopped(Exception):
    """The worker was ended for good. Unfinished work stays as it was."""


class WorkerLost(Exception):
    """The worker is lost with its machine, which says nothing about the check."""


class WorkerProcess:
    """One worker process at a time, started when it is needed and replaced when it is gone.

    A start that fails is repeated after a pause if an earlier start succeeded. Only one thread may send and receive.
    Any thread may call `kill`; the thread that waits then raises `Stopped`. If the transport reaches other machines,
    methods raise `WorkerLost`; the next call may find another machine.
    """

    def __init__(
        self,
        config: WorkerConfig,
        transport: Transport,
        on_start: Callable[[Hello], None] = lambda hello: None,
        on_death: Callable[[str | ProcessLost], None] = lambda reason: None,
    ) -> None:
        self.config, self.transport = config, transport  # a new configuration counts from the next start
        self.hello: Hello | None = None  # of the running process
        self.checks = 0  # answered since the process started
        self.has_worked = False  # whether workers can be started, as far as is known
        self.stage = "start"  # waits for a check ("start", or "" after a check), or a stage of a check
        self.stage_began = time.monotonic()
        self._failures = 0  # processes in a row that were of no use
        self._killed = threading.Event()
        self._on_start, self._on_death = on_start, on_death
        self._id = 0
        self._observed: tuple[Observation, ...] = ()  # in this stage

    def is_placed(self) -> bool:
        """Whether there is a machine; if not, requests a machine. Raises `Stopped` and `WorkerUnavailable`."""
        if self._killed.is_set():
            raise Stopped
        is_placed = self.transport.is_placed()
        if is_placed == (self.stage == _WAITING):
            self._enter("" if is_placed else _WAITING)
        return is_placed

    def start(self) -> Hello:
        """Start the process unless it runs. Raises `UserError` when no process starts, `Stopped` and `WorkerLost`."""
        while self.hello is None:
            pause = PAUSES[min(self._failures, len(PAUSES)) - 1] if self._failures else 0.0
            if self._killed.wait(pause):
                raise Stopped
            while not self.is_placed():
                self._killed.wait(_PLACE_SECONDS)
            try:
                self.checks = 0
                self.transport.start(self.config)
                hello = self._read_hello(self.config.argv()[0])
                self._on_start(hello)
                self.hello, self.has_worked = hello, True
            except MachineLost as lost:
                self._leave_machine(str(lost))
            except WorkerUnavailable as error:
                if self.transport.machine:
                    self._leave_machine(str(error))
                if not self.has_worked:
                    raise
                self._count_failure(str(error))
        return self.hello

    def send(self, check: Check) -> None:
        """Hand over a check without waiting; `receive` gives its result. Raises as `start` does."""
        self._id, self._check = self._id + 1, check
        line = replace(check, id=self._id).to_json().encode()
        while True:
            self.start()
            self._enter("start")
            try:
                self.transport.write(line)
            except MachineLost as lost:
                self._leave_machine(str(lost))
            except OSError:
                _, log = self.transport.wait(0.0)
                self._count_failure(f"it ended between two cases: {find_last_words(log)}")
            else:
                return

    def receive(self) -> Result:
        """The result of the check sent last. Raises `WorkerFault`, `CompilersOff`, and as `start` does."""
        began, is_repeated = time.monotonic(), False
        while True:
            message = self._read(self.config.timeout)
            if isinstance(message, ProcessLost):
                # The system and people kill processes too. A process that had not begun the check accuses no case.
                if is_repeated or (message.detail != signal.SIGKILL.name and self.stage != "start"):
                    return self._report_loss(message, began)
                is_repeated = True
                self._count_failure(message)
                self.send(self._check)
                continue
            self._failures = 0
            if isinstance(message, StageStarted) and message.id == self._id:
                self._enter(message.stage)
                self._observed = message.observed
            elif isinstance(message, Result) and message.id == self._id:
                self.checks += 1
                self._enter("")
                if message.unfit:
                    self._discard(message.unfit)
                return message

    def draw(self) -> Drawn:
        """The next case of libFuzzer; a check sent next must judge it. Raises as `receive` does."""
        while True:
            self.start()
            self._enter("drawing")
            while not isinstance(message := self._read(DRAW_SECONDS), Drawn | ProcessLost):
                pass
            if isinstance(message, Drawn):
                return message
            self._count_failure(f"it ended before it gave a case: {describe_failure(message)}")

    def request(self, request: Message, stage: str) -> Message | ProcessLost:
        """The answer to a request that is no check. Raises as `start` does, and `WorkerFault`."""
        self.start()
        self._enter(stage)
        self.transport.write(request.to_json().encode())
        while isinstance(answer := self._read(self.config.timeout), StageStarted):
            pass
        if isinstance(answer, ProcessLost):
            self._discard(answer)
        return answer

    def replace(self) -> None:
        """End the process; the next check starts another."""
        if self.hello is not None:
            with suppress(OSError, MachineLost):
                self.transport.write(protocol.Exit().to_json().encode())
                self.transport.wait(_EXIT_SECONDS)
        self._end()

    def close(self) -> None:
        """Ask the process to end, and end it."""
        self.replace()
        self.transport.kill()

    def kill(self) -> None:
        """End the process and its children, at once and for good."""
        self._killed.set()
        self.transport.kill()

    def _end(self) -> None:
        self.transport.end()
        self.hello = None

    def _enter(self, stage: str) -> None:
        self.stage, self.stage_began = stage, time.monotonic()

    def _discard(self, reason: str | ProcessLost) -> None:
        self._end()
        if self._killed.is_set():
            raise Stopped
        self._on_death(reason)

    def _count_failure(self, reason: str | ProcessLost) -> None:
        """Give up a lost process that accuses no case. Raises `WorkerUnavailable` after too many such processes."""
        self._discard(reason)
        self._failures += 1
        if self._failures > len(PAUSES) and not self.transport.machine:
            self.has_worked, self._failures = False, 0
            text = describe_failure(reason) if isinstance(reason, ProcessLost) else reason
            raise WorkerUnavailable(f"no worker starts any more, after {len(PAUSES) + 1} tries: {text}")

    def _leave_machine(self, reason: str) -> NoReturn:
        """Give up a machine. Raises `WorkerUnavailable` when no worker ever started, and `WorkerLost`."""
        reason = f"{self.transport.machine}: {reason}"
        self.transport.kill()
        if not (self.has_worked or self._killed.is_set()):
            self._end()
            raise WorkerUnavailable(f"no worker starts: {reason}")
        self._failures += 1
        self._discard(reason)
        raise WorkerLost(reason)

    def _read(self, seconds: float) -> Message | ProcessLost:
        """The next message within `seconds`, or how the process was lost.

        Raises `WorkerFault`, and `WorkerUnavailable` if the worker says that it can't be used.
        """
        try:
            message = self._read_line(seconds)
        except MachineLost as lost:
            self._leave_machine(str(lost))
        if isinstance(message, protocol.Fault):
            self._discard(f"a fault of attnfuzz in {self.stage}: {find_last_words(message.text.splitlines())}")
            raise WorkerFault(f"the worker failed in {self.stage}:\n{message.text.rstrip()}")
        if isinstance(message, Unusable):
            kind = WorkerUnavailable if self.hello is None else CompilersOff
            self._end()
            raise kind(f"the worker under {self.config.argv()[0]} can't be used: {message.reason}")
        return message

    def _read_line(self, seconds: float) -> Message | ProcessLost:
        try:
            line = self.transport.read(time.monotonic() + seconds)
        except (TimeoutError, MemoryError) as error:
            _, log = self.transport.wait(_DUMP_SECONDS, abort=True)
            place = find_place(log)
            if isinstance(error, MemoryError):
                return ProcessLost(Process.OUT_OF_MEMORY, str(self.config.memory_mib), place)
            return ProcessLost(Process.TIMEOUT, f"{seconds:g}", place)
        if line is not None:
            try:
                return protocol.from_json(line)
            except protocol.ProtocolError as error:
                return ProcessLost(Process.PROTOCOL, str(error))
        code, log = self.transport.wait(_END_SECONDS)
        if code in (None, protocol.OUTPUT_CLOSED_CODE):
            return ProcessLost(Process.PROTOCOL, "closed file descriptors of the worker")
        return explain_exit(code, log, is_start=self.hello is None)

    def _report_loss(self, failure: ProcessLost, began: float) -> Result:
        text, stage, seconds = describe_failure(failure), self.stage, time.monotonic() - began
        self._discard(failure)
        verdict = _VERDICTS.get(failure.how, Verdict.WORKER_DIED)
        if stage in _OWN_STAGES:
            # Nothing is compiled yet: eager or attnfuzz is at fault, so the case can't be judged.
            return Result(
                id=self._id, rejected=f"{verdict} in {stage}: {text}", results=(), seconds=seconds, stage=stage
            )
        lost = SubjectResult(stage, verdict, failure=failure, seconds=seconds, observations=self._observed)
        return Result(id=self._id, rejected=None, results=(lost,), seconds=seconds)

    def _read_hello(self, python: str) -> Hello:
        self._enter(self.transport.stage)
        message: Message | ProcessLost = StageStarted(0, self.stage)
        while isinstance(message, StageStarted):
            self._enter(message.stage)
            text = "\n".join(wrap(f"waiting for the worker under {python}: {self.stage}"))
            told = threading.Timer(_WAIT_SECONDS, sys.stderr.write, (f"{text}\n",))
            told.daemon = True  # An interrupt between two lines here must not wait for it.
            try:
                if not self.has_worked:
                    told.start()
                message = self._read(max(START_SECONDS, self.config.timeout))
            finally:
                told.cancel()
        if isinstance(message, Hello):
            return message
        if isinstance(message, ProcessLost):
            # A shim of a missing Python prints why it imports nothing.
            is_told = message.how is Process.EXIT and message.last_words
            reason = describe_failure(message) if is_told else f"{self.stage}: {describe_failure(message)}"
        else:
            reason = f"it says {message.kind!r} first"
        self._end()
        raise WorkerUnavailable(f"the worker under {python} can't be used: {reason}")
