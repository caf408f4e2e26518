"""When a campaign ends, and why: the one place that decides it."""

import math
import shutil
import tempfile
import threading
import time
from enum import StrEnum
from pathlib import Path

from fuzz.campaign.options import Budget
from generators.errors import UserError

MIN_FREE_MIB = 32
"""With less free space than this compilers fail for lack of it, and so would be accused of what they did not do."""


class StopReason(StrEnum):
    """Why a campaign ended."""

    BUDGET = "budget spent"
    INTERRUPTED = "interrupted"
    KILLED = "stopped"
    FAIL_FAST = "first finding (--fail-fast)"
    DISK_FULL = "disk full"
    FAULT = "fault"


class DiskFull(UserError):
    """There is no space left for results."""


class StopCondition:
    """Whether a campaign of this budget goes on. Threads share it."""

    def __init__(self, budget: Budget) -> None:
        self.is_killed = False
        """Workers were ended with their cases unfinished: nothing they say counts."""
        self._budget = budget
        self._reason: StopReason | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def stop(self, reason: StopReason) -> None:
        """Finish the cases in hand and end. The first reason counts."""
        with self._lock:
            self._reason = self._reason or reason

    def kill(self) -> None:
        """End at once; cases in hand are judged by the next run."""
        self.stop(StopReason.KILLED)
        self.is_killed = True

    @property
    def reason(self) -> StopReason:
        """Why the campaign ends."""
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
    def elapsed(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget that are left, below 0 after its end; infinite for a budget of cases."""
        return math.inf if self._budget.seconds is None else self._budget.seconds - self.elapsed

    def require_space(self, directory: Path) -> None:
        """Raises `DiskFull` when the disk of the run directory, or that of temporary files, is all but full.

        What a worker says of its disk decides nothing: any program under test can say that.
        """
        for place in (directory, Path(tempfile.gettempdir())):
            if shutil.disk_usage(place).free < MIN_FREE_MIB * 2**20:
                raise DiskFull(f"{place}: less than {MIN_FREE_MIB} MiB are free; all findings so far are saved")
