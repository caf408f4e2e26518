"""Divides worker time between new cases and investigations, until the budget's last seconds."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz.campaign.options import Options, StopCondition

SHARE, LONG_SHARE = 0.5, 0.85
"""The share of worker time for investigations while cases remain. The longer share applies to functions of the user,
and if more than `MANY_WAITING` suspicions wait for each worker."""
MANY_WAITING = 4
EXCEPTIONS_SHARE = 0.15
"""Exceptions of compilers that are no part of torch get no more than this share of worker time while cases remain."""
FRUITLESS_SHARE = 0.2
"""While investigations take less than this share of worker time, fruitless signatures are investigated too."""

_ALONE_SHARE = 0.25
"""An investigation goes on without new cases for this share of the budget, and at most for the time of a shrink: most
end by then, and the first bug shows early. Longer investigations keep to their share of worker time."""

_LAST_SECONDS = 60.0
"""In these last seconds no investigation begins, since it would save a half-shrunk case."""
_LAST_SHARE = 0.33
"""For a short budget, this share of it stands for `_LAST_SECONDS`."""
_CONFIRM_SHARE = 0.67
"""Shrinking ends when this share of that time is left, so that fresh workers can confirm the case."""


class Stopwatch:
    """The time of a thread's investigation, without its pauses."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, time.monotonic()
        self._is_paused = False

    @property
    def seconds(self) -> float:
        return self._before if self._is_paused else self._before + time.monotonic() - self._since

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._before, self._is_paused = self.seconds, True
        try:
            yield
        finally:
            self._since, self._is_paused = time.monotonic(), False


class TimeShares:
    """The time that investigations have taken, and may take. Threads share it."""

    def __init__(self, options: Options, stop: StopCondition) -> None:
        self._stop, self._workers = stop, options.workers
        budget = options.budget.seconds
        self._last = min(_LAST_SECONDS, _LAST_SHARE * (budget or 0.0))
        self._alone = min(options.shrink_seconds, _ALONE_SHARE * budget if budget else options.shrink_seconds)
        self._ended = self._exceptions = 0.0  # seconds of investigations that ended, and of exceptions among these
        self._open: dict[int, Stopwatch] = {}  # by thread
        self._lock = threading.Lock()

    def begin(self) -> None:
        """The calling thread begins an investigation."""
        self._open[threading.get_ident()] = Stopwatch()

    @property
    def own(self) -> Stopwatch:
        """The stopwatch of the calling thread's investigation."""
        return self._open[threading.get_ident()]

    def end(self, *, is_exception: bool = False) -> None:
        """The calling thread's investigation ended. `is_exception`: as in `SuspicionQueue`."""
        with self._lock:
            seconds = self._open.pop(threading.get_ident()).seconds
            self._ended += seconds
            self._exceptions += seconds * is_exception

    @property
    def has_time_for_exceptions(self) -> bool:
        """Whether exceptions took less than their share of worker time so far."""
        return self._exceptions <= EXCEPTIONS_SHARE * self._stop.elapsed * self._workers

    @property
    def open(self) -> int:
        """The number of investigations that have begun and not ended."""
        return len(self._open)

    def is_above(self, share: float) -> bool:
        """Whether investigations took more than this share of worker time so far."""
        with self._lock:
            seconds = self._ended + sum(watch.seconds for watch in tuple(self._open.values()))
        return seconds > share * self._stop.elapsed * self._workers

    def owes_cases(self, share: float) -> bool:
        """Whether the calling thread's investigation, if it may take this share, is to let a new case go first."""
        return self.own.seconds > self._alone and not self.is_late and self.is_above(share)

    @property
    def is_late(self) -> bool:
        """Whether no investigation begins any more."""
        return self._stop.seconds_left < self._last

    @property
    def is_time_to_confirm(self) -> bool:
        """Whether shrinking ends."""
        return self._stop.seconds_left < _CONFIRM_SHARE * self._last
