"""Root causes as files of a run directory, written by campaigns and triage, so that each is searched for once."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from corpus.entry import Entry
from corpus.files import read_file, replace_file
from fuzz.attribution.root_cause import RootCause
from fuzz.subjects import list_packages
from generators.errors import UserError
from generators.records import decode, encode

CAUSES_DIRECTORY = "attributions"
_FORMAT = 2
_MAX_BYTES = 1 << 20


def cause_path(run: Path, entry: Entry, versions: Mapping[str, str] | str, device: str) -> Path:
    """The file of an entry's cause in a run directory. `*` for `versions` or `device` makes a pattern.

    versions: of torch, and of the packages of other compilers
    """
    torch = versions if isinstance(versions, str) else _spell(versions, entry.subject)
    name = re.sub(r"[^\w.+-]", "_", f"{entry.case.id}-{entry.subject}")
    return run / CAUSES_DIRECTORY / f"{name}-{torch}-{device}.json"


def _spell(versions: Mapping[str, str], subject: str) -> str:
    runtime = (name for name in list_packages(subject)[:1] if name in versions)
    return "-".join([versions["torch"], *(f"{name}{versions[name]}" for name in runtime)])


def write_cause(path: Path, cause: RootCause) -> None:
    """Raises UserError."""
    replace_file(path, json.dumps({"format": _FORMAT, **encode(cause)}, indent=1).encode())


def read_cause(path: Path) -> RootCause | None:
    """A stored cause; None if the file has no cause in this format. It is then found again."""
    try:
        data = json.loads(read_file(path, _MAX_BYTES))
        return decode(RootCause, data) if isinstance(data, dict) and data.get("format") == _FORMAT else None
    except (UserError, ValueError, RecursionError):
        return None
