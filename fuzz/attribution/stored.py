"""Root causes as files of a run directory, written by campaigns and triage, so that each is searched for once."""

import json
import re
from pathlib import Path

from corpus.entry import Entry
from corpus.files import read_file, replace_file
from fuzz.attribution.root_cause import RootCause
from generators.errors import UserError
from generators.records import decode, encode

CAUSES_DIRECTORY = "attributions"
_FORMAT = 2
_MAX_BYTES = 1 << 20


def cause_path(run: Path, entry: Entry, torch: str, device: str) -> Path:
    """The file of an entry's cause in a run directory. `*` for `torch` or `device` makes a pattern."""
    name = re.sub(r"[^\w.+-]", "_", f"{entry.case.id}-{entry.subject}")
    return run / CAUSES_DIRECTORY / f"{name}-{torch}-{device}.json"


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
