"""Asking a worker about texts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz.ask.worker_process import WorkerProcess
from fuzz.experiments import Trial
from fuzz.protocol import Check, Hello, Message, Result, SubjectResult, from_json

ROOT = Path(__file__).resolve().parents[2]


class Asker:
    """Asks the worker of all tests about texts."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    @property
    def hello(self) -> Hello:
        """What the worker says of itself."""
        return self.process.start()

    def answer(self, request: Check) -> Result:
        """What it makes of a request."""
        self.process.send(request)
        return self.process.receive()

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


def run_worker(*arguments: str, requests: tuple[Check, ...] = ()) -> tuple[subprocess.Popen[bytes], list[Message]]:
    """A worker of its own that was given all requests at once, and what it said until it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz.check.worker", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
    )
    said, _ = process.communicate("".join(f"{request.to_json()}\n" for request in requests).encode(), 300)
    return process, [from_json(line) for line in said.splitlines()]
