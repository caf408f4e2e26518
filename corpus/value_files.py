"""The files of given values: where they lie, and copies that go with a case. Files are known by their hash.

Directories that may hold files are noted once, when a case file is read. A file is taken from any of them, since equal
hashes are equal values.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from corpus.files import read_file, replace_file
from generators.errors import UserError
from generators.program.case import Case
from generators.program.given import VALUES_DIRECTORY, Given
from generators.program.value_format import HEADER_BYTES, MOST_BYTES, VALUES_SUFFIX, FormatError, Header, read_header

_directories: dict[Path, None] = {}


def note(directory: Path) -> None:
    """Look for files beside the case files of this directory, too."""
    _directories[directory.absolute() / VALUES_DIRECTORY] = None


def list_files(case: Case) -> Iterator[Given]:
    """The given values of a case, and of its earlier cases, that are in files; each file once."""
    cases = case, *(earlier.case for earlier in case.before)
    found = (item.values.given for one in cases for item in one.inputs if item.values.given is not None)
    yield from {given.sha256: given for given in found if given.sha256}.values()


def find(given: Given) -> Path:
    """The path of a file. Raises UserError if it is missing or altered, or holds other values than the case says."""
    places = [directory / given.file_name for directory in [*_directories]]  # threads note more
    there = [path for path in places if path.exists()]
    for path in there:
        sha256, holds = _look_at(path)
        if sha256 == given.sha256:
            if not isinstance(holds, Header):
                raise UserError(f"{path}: {holds}")
            if (holds.dtype, holds.shape) != (given.dtype, given.shape):
                raise UserError(f"{path}: holds {holds}, and the case says {given.dtype} {list(given.shape)}")
            return path
    if there:
        raise UserError(f"{there[0]}: altered: its SHA-256 is not {given.sha256}, which the case names")
    raise UserError(
        f"{VALUES_DIRECTORY}/{given.file_name}: missing; it goes with the case file, in the directory beside it"
    )


def find_all(case: Case) -> dict[str, str]:
    """The paths of a case's files, by SHA-256. Raises UserError."""
    return {given.sha256: str(find(given)) for given in list_files(case)}


def copy_files(case: Case, directory: Path) -> None:
    """Copy a case's files to where a case file in this directory needs them. Raises UserError."""
    for given in list_files(case):
        path = directory / VALUES_DIRECTORY / given.file_name
        if not (path.exists() and _look_at(path)[0] == given.sha256):
            replace_file(path, _read(find(given)))
        note(directory)


def link_files(program: str, directory: Path) -> None:
    """Link the files that the text of a program reads, for a run of it in this directory."""
    for name in dict.fromkeys(re.findall(r'read_values\("([0-9a-f]+)"', program)):
        places = (known / f"{name}{VALUES_SUFFIX}" for known in [*_directories])
        found = next((path for path in places if path.exists() and _look_at(path)[0].startswith(name)), None)
        if found is not None:
            (directory / VALUES_DIRECTORY).mkdir(exist_ok=True)
            (directory / VALUES_DIRECTORY / found.name).symlink_to(found)


@cache
def _open_scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="attnfuzz-values-")


def make_scratch() -> Path:
    """A directory for files of cases that are in no case file yet. It is removed when the process ends."""
    scratch = Path(_open_scratch().name)
    note(scratch)
    return scratch


def _look_at(path: Path) -> tuple[str, Header | FormatError]:
    """The SHA-256 of a file, and what it holds. Raises UserError."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from error
    return _look_once(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _look_once(path: Path, _changed: int, _size: int) -> tuple[str, Header | FormatError]:
    content = _read(path)
    try:
        return hashlib.sha256(content).hexdigest(), read_header(content)
    except FormatError as error:
        return hashlib.sha256(content).hexdigest(), error


def _read(path: Path) -> bytes:
    return read_file(path, MOST_BYTES + 8 + HEADER_BYTES)
