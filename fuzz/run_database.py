"""The SQLite file of a run directory, which survives a kill at any time, and its errors in words."""

import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from generators.errors import UserError

RESULTS_FILE = "results.sqlite"
"""The store, in a run directory."""
LOCK_FILE = "lock"
"""A campaign holds it while it runs."""
_LOCK_SECONDS = 5.0
"""How long to wait for another process that has locked the results: the default of `sqlite3`."""


class StoreLocked(UserError):
    """Another process has locked the results of a run for longer than `_LOCK_SECONDS`."""


def is_running(directory: Path) -> bool:
    """Whether a campaign runs in a directory."""
    with suppress(OSError), (directory / LOCK_FILE).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class RunDatabase:
    """The open file. Threads share it."""

    def __init__(self, directory: Path, tables: str, version: int, *, readonly: bool = False) -> None:
        """Open the file, or create it with these tables unless `readonly`. Raises `UserError` for a file of another
        kind or version, a damaged run or a file that another process has locked."""
        self.path, self._is_written = directory / RESULTS_FILE, False
        self._lock = threading.RLock()
        existed = self.path.exists()
        if existed and not readonly and not self.path.stat().st_size:
            _require_no_run(directory)  # before SQLite removes a log that lies beside it
        uri = self.path.resolve().as_uri()
        if readonly:
            # Without a writer's log beside it the file is complete, and its directory may be read-only.
            uri += "?mode=ro" if self.path.with_name(f"{RESULTS_FILE}-wal").exists() else "?immutable=1"
        with self._translating("opened"):
            self._db = sqlite3.connect(uri, _LOCK_SECONDS, uri=True, check_same_thread=False, isolation_level=None)
            try:
                if not readonly:
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=NORMAL")
                self._require_tables(tables, version, readonly=readonly, existed=existed)
            except Exception:
                self._db.close()
                raise
        self._is_written = not readonly

    def _require_tables(self, tables: str, version: int, *, readonly: bool, existed: bool) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found or self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
            if found != version:
                way = "this version reads" if readonly else "use another --out: this version writes"
                raise UserError(f"{self.path}: store of format {found}, {way} {version}")
            return
        if readonly:
            raise UserError(f"{self.path}: empty: the run has not begun, or is damaged")
        if existed:
            _require_no_run(self.path.parent)
        with self._transaction():
            for statement in tables.split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={version}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _select(self, query: str, *values: object) -> list[Any]:
        with self._lock, self._translating("read"):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _translating(self, way: str) -> Iterator[None]:
        """Raises `StoreLocked` or `UserError` for an error of SQLite. An operational error of a store that is written
        stays, since the disk may be its reason."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                locked = f"{self.path}: another process has locked it; end that process, then try again"
                raise StoreLocked(locked) from error
            if isinstance(error, sqlite3.OperationalError) and self._is_written:
                raise
            raise UserError(f"{self.path}: can't be {way}: {error}") from error

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Raises UserError for a row that this version did not write."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
            raise UserError(f"{self.path}: {what} is not readable: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._translating("written"), self._db:  # which commits, or rolls back
            self._db.execute("BEGIN IMMEDIATE")
            yield


def _require_no_run(directory: Path) -> None:
    """Raises `UserError` if a directory whose results are empty has other files. A run that was killed before its first
    write has none: it writes the results first."""
    own = {LOCK_FILE, *(RESULTS_FILE + suffix for suffix in ("", "-journal", "-wal", "-shm"))}
    if others := sorted({one.name for one in directory.iterdir()} - own):
        path = directory / RESULTS_FILE
        raise UserError(f"{path}: empty, but {directory} has {others[0]}: the run is damaged; give another --out")
