"""Reads regular files only, checks that output can be written before work begins, and writes files atomically."""

import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from generators.errors import UserError

_locked = threading.local()
"""`handles`: of the directories that this thread has locked, by path."""


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes. Raises UserError, and never waits."""
    try:
        # Opening a pipe without a writer waits otherwise.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: can't be read: not a regular file")
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read: {error.args[-1]}") from error
    if len(content) > most:
        raise UserError(f"{path}: larger than {most} bytes")
    return content


def require_writable(path: Path, option: str, *, is_file: bool = False) -> None:
    """Make a directory, or the directory of a file. Raises UserError if nothing can be written there."""
    directory = path.absolute().parent if is_file else path
    try:
        if is_file and path.is_dir():
            raise UserError(f"{option} {path}: a directory; name a file")
        if is_file and path.exists() and not path.is_file():
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # such as /dev/stdout
            return
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, ValueError) as error:
        raise UserError(f"{option} {path}: can't be written: {error.args[-1]}") from error


@contextmanager
def lock_directory(directory: Path) -> Iterator[int]:
    """Make a directory, and keep out the other threads and processes that lock it. Gives its file descriptor.

    A thread may lock it twice. Some file systems have no locks. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory, handles = directory.resolve(), vars(_locked).setdefault("handles", {})
    if directory in handles:
        yield handles[directory]
        return
    handles[directory] = handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        del handles[directory]
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and make its directory. Raises UserError.

    After a kill the file has its old or its new content. A hidden temporary file may remain until the next write.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = path.resolve()  # keeps a symbolic link
        temporary = path.with_name(f".{path.name}.tmp")
        with lock_directory(path.parent) as directory:
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
                os.fsync(directory)
            finally:
                temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be written: {error.args[-1]}") from error
