"""Asking a worker about texts; and the other end of a worker's pipes, without any care for hangs and deaths."""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from fuzz.ask.worker_process import WorkerProcess
from fuzz.experiments import Trial
from fuzz.protocol import Check, Hello, Message, Result, StageStarted, SubjectResult, Unusable, from_json

ROOT = Path(__file__).resolve().parents[2]


class Asker(ABC):
    """Asks a worker about texts."""

    @property
    @abstractmethod
    def hello(self) -> Hello:
        """What the worker says of itself."""

    @abstractmethod
    def answer(self, request: Check) -> Result:
        """What it makes of a request."""

    def check(
        self,
        source: str,
        *subjects: str,
        training: bool = False,
        dynamic: bool = False,
        random: bool = False,
        attention_stub: str | None = None,
        experiments: tuple[Trial, ...] = (),
        settings: dict[str, Any] | None = None,
    ) -> Result:
        """What the worker makes of `source`."""
        request = Check(
            id=7,
            source=source,
            subjects=subjects,
            training=training,
            dynamic=dynamic,
            random=random,
            attention_stub=attention_stub,
            experiments=experiments,
            settings=settings or {},
        )
        return self.answer(request)

    def one(self, source: str, subject: str, **options: Any) -> SubjectResult:
        """What it makes of `source` under one subject, in a case eager runs; `options` as `check` takes them."""
        result = self.check(source, subject, **options)
        assert result.rejected is None
        return result.results[0]


class Borrower(Asker):
    """Asks the worker of all tests."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    @property
    def hello(self) -> Hello:
        return self.process.start()

    def answer(self, request: Check) -> Result:
        self.process.send(request)
        return self.process.receive()


class Client(Asker):
    """A worker of its own, started with `arguments`.

    `stages` are those of the last check, `first` is what it said first.
    """

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.check.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        self.stages: list[str] = []
        while isinstance(first := self._read(), StageStarted):
            pass
        self.first = first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hello(self) -> Hello:
        assert isinstance(self.first, Hello), self.first
        return self.first

    @property
    def unusable(self) -> Unusable:
        assert isinstance(self.first, Unusable), self.first
        return self.first

    def answer(self, request: Check) -> Result:
        self._write(request)
        self.stages = []
        while True:
            message = self._read()
            if isinstance(message, Result):
                return message
            assert isinstance(message, StageStarted), message
            self.stages.append(message.stage)

    def close(self) -> None:
        """End it the way a parent does that just closes the pipe."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(300)
        self.process.stdout.close()

    def _write(self, message: Message) -> None:
        assert self.process.stdin
        self.process.stdin.write(message.to_json().encode() + b"\n")
        self.process.stdin.flush()

    def _read(self) -> Message:
        assert self.process.stdout
        return from_json(self.process.stdout.readline())
