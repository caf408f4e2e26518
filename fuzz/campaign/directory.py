"""The directory of a run: what lies in it, and that one campaign at a time uses it."""

import errno
import fcntl
import itertools
import os
import shutil
import time
from pathlib import Path
from typing import IO, Self

from fuzz.campaign.store import FILE as STORE
from generators.errors import UserError

_SPARE_MIB = 64
"""Refuse to start with less free space than this: logs and compiled code of a few minutes."""


class RunDirectory:
    """An open run directory: `results.sqlite`, `events.ndjson`, `stats.json`, `workers/*.log`, `cache/`, `internal/`, and,
    where a fault of ours kept cases from being judged, `faults/`."""

    def __init__(self, path: Path, lock: IO[bytes], made: Path | None) -> None:
        self.path, self._lock, self._made = path, lock, made

    @classmethod
    def open(cls, path: Path) -> Self:
        """Make or enter the directory. Raises `UserError` when it can't be written, is full, is in use, or holds other
        things."""
        if path.is_dir() and not (path / STORE).exists() and any(path.iterdir()):
            raise UserError(f"--out {path}: holds other files and no run; give a directory of its own")
        made = None if path.exists() else path
        while made is not None and not made.parent.exists():
            made = made.parent
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / "lock").open("ab")
            probe = path / ".space"
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _SPARE_MIB * 2**20)
            probe.unlink()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                (path / ".space").unlink(missing_ok=True)
                raise UserError(f"--out {path}: less than {_SPARE_MIB} MiB are free there") from error
            raise UserError(f"--out {path}: can't be written: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise UserError(f"--out {path}: another campaign is running there") from error
        return cls(path, lock, made)

    def discard(self) -> None:
        """Leave no trace of a campaign that never began; a directory that was there before stays as it is."""
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def close(self) -> None:
        """Drop the compiled code, which the next run makes anew, and let others in."""
        shutil.rmtree(self.path / "cache", ignore_errors=True)
        self._lock.close()


def default_path() -> Path:
    """`runs/<start>`, under the working directory; with a number where one of that second is there."""
    start = Path("runs") / time.strftime("%Y-%m-%dT%H-%M-%S")
    others = (start.with_name(f"{start.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([start], others) if not path.exists())
