"""The options of a campaign, and when it ends."""

import math
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from corpus.ledger import Ledger
from fuzz.ask.transport import WorkerUnavailable
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.cli import DISK_ERRORS
from fuzz.durations import format_duration, parse_duration
from fuzz.run_database import StoreLocked
from fuzz.subjects import is_user_function
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.neighbours import Neighbourhood

MIN_FREE_MIB = 32
"""With less free space, compiling fails for lack of space, and the compiler would be accused."""
GRACE_SECONDS = 5.0
"""How long a case that has begun may take after the end."""
_SQLITE_DISK_ERRORS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
_CASES = re.compile(r"(\d{1,9})x")


@dataclass(frozen=True, slots=True)
class Budget:
    """Either seconds of wall time or cases to judge."""

    seconds: float | None = None
    cases: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `90s`, `10m`, `1h30m` or `500x`. Raises `UserError` for anything else, a bare number included."""
        counted = _CASES.fullmatch(text.strip())
        if counted:
            if int(counted[1]) == 0:
                raise UserError(f"budget must be at least 1x, got {text!r}")
            return cls(cases=int(counted[1]))
        return cls(seconds=parse_duration(text, "budget", "90s, 10m, 1h30m or 500x (cases)"))

    def __str__(self) -> str:
        return f"{self.cases}x" if self.seconds is None else format_duration(self.seconds)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a campaign."""

    budget: Budget
    seed: int
    workers: int
    subjects: tuple[str, ...]
    out: Path
    corpus: Path
    ignore_dirs: tuple[Path, ...]  # of case files whose bugs are not reported again
    worker_config: WorkerConfig
    shrink_seconds: float = 60.0  # of wall time, for each suspicion
    fail_fast: bool = False
    engine: str = "random"  # of `search.ENGINES`
    seeds: tuple[Case, ...] = ()  # that a guided search or libFuzzer starts with
    models: Neighbourhood | None = None  # the blocks of the user's module, whose neighbours are the cases
    ledger: Ledger | None = None
    against: WorkerConfig | None = None  # the interpreter of `--against`: a finding must pass there, or fail otherwise
    quiet: bool = False  # print findings only
    draws: bool = False  # programs with given operations, which compilers alone take
    named: tuple[str, ...] = ()  # the subjects that the user gave
    gpus: tuple[str, ...] = ()  # values of CUDA_VISIBLE_DEVICES, which workers take by turns
    open_remote: Callable[..., WorkerProcess] | None = None  # gives the workers of a Ray cluster
    resume: tuple[str, ...] = ()  # the arguments of the command that continues the run

    def bind(self, config: WorkerConfig, number: int) -> WorkerConfig:
        return replace(config, gpu=self.gpus[number % len(self.gpus)]) if self.gpus else config

    @property
    def is_of_user(self) -> bool:
        """Whether only functions of the user are tested, and so not eager."""
        return all(map(is_user_function, self.subjects))


def list_gpus() -> tuple[str, ...]:
    """Values for CUDA_VISIBLE_DEVICES, one for each GPU of this machine; none if the GPUs are not known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(filter(None, visible.split(",")))
    # A container only has the device files of its own GPUs.
    return tuple(str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))


class StopReason(StrEnum):
    """Why a campaign ended."""

    BUDGET = "budget spent"
    INTERRUPTED = "interrupted"
    KILLED = "stopped"
    FAIL_FAST = "first finding (--fail-fast)"
    DISK_FULL = "disk full"
    LOCKED = "results locked by another process"
    NO_WORKER = "no worker starts any more"
    FAULT = "fault"


class DiskFull(UserError):
    """There is no space left for results, or the disk fails."""


def translate_disk_error(error: Exception, place: Path) -> Exception:
    """`DiskFull` for an exception that the disk of `place` caused; else the exception."""
    cause = error.__cause__ or error
    is_full = isinstance(cause, OSError) and cause.errno in DISK_ERRORS
    if isinstance(cause, sqlite3.OperationalError):
        is_full = cause.sqlite_errorcode & 0xFF in _SQLITE_DISK_ERRORS
    if not is_full:
        return error
    reason = error if isinstance(error, UserError) else f"{place}: {getattr(cause, 'strerror', cause)}"
    return DiskFull(f"{reason}: the disk is full or fails, or a file has its largest size")


def require_space(directory: Path) -> None:
    """Raises `DiskFull` if the run directory or the temporary directory has less than `MIN_FREE_MIB` left.

    Errors that a worker reports are not trusted: the program under test can raise them.
    """
    for place in (directory, Path(tempfile.gettempdir())):
        if shutil.disk_usage(place).free < MIN_FREE_MIB * 2**20:
            raise DiskFull(f"{place}: less than {MIN_FREE_MIB} MiB are free")


class StopCondition:
    """Whether a campaign goes on. Threads share it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._reason: StopReason | None = None
        self._began = self._stopped = time.monotonic()
        # A signal handler may interrupt the main thread while that holds it.
        self._lock = threading.RLock()

    def begin(self) -> None:
        self._began = time.monotonic()

    def stop(self, reason: StopReason) -> None:
        """End after the cases that have begun. The first reason counts."""
        with self._lock:
            if self._reason is None:
                self._reason, self._stopped = reason, time.monotonic()

    def fail(self, error: Exception, place: Path) -> Exception:
        """End because of an exception, and return the exception to raise. `place`: where the campaign writes."""
        error = translate_disk_error(error, place)
        reasons: dict[type, StopReason] = {
            DiskFull: StopReason.DISK_FULL,
            StoreLocked: StopReason.LOCKED,
            WorkerUnavailable: StopReason.NO_WORKER,
        }
        self.stop(next((reason for kind, reason in reasons.items() if isinstance(error, kind)), StopReason.FAULT))
        return error

    def kill(self) -> None:
        """End at once. The next run judges the cases that have begun."""
        self.stop(StopReason.KILLED if self.seconds_left > 0 else StopReason.BUDGET)
        self._stopped = -math.inf

    @property
    def reason(self) -> StopReason:
        return self._reason or StopReason.BUDGET

    @property
    def is_stopped(self) -> bool:
        """Whether something other than the budget ends the campaign."""
        return self._reason is not None

    @property
    def is_over(self) -> bool:
        """Whether no new case or suspicion is to be begun."""
        return self.is_stopped or self.seconds_left <= 0

    @property
    def is_overdue(self) -> bool:
        """Whether `GRACE_SECONDS` have passed since the end."""
        since = time.monotonic() - self._stopped if self.is_stopped else -self.seconds_left
        return since > GRACE_SECONDS

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget that are left, below 0 after its end; infinite for a budget of cases."""
        return math.inf if self._budget.seconds is None else self._budget.seconds - self.elapsed
