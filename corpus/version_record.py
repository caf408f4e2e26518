"""Write down in a case file what a torch version made of the case, and leave the rest of the file as it is."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from corpus.atomic_write import replace_file
from corpus.entry import Entry, dumps, load, loads
from generators.errors import CaseError, UserError

# From the key to the next one: what is indented, and lines that close a flow mapping.
_SEEN = re.compile(r"^seen:.*\n?(?:[ \t}].*\n?|\n)*", re.MULTILINE)


def record(path: Path, verdicts: Mapping[str, str]) -> bool:
    """Note these verdicts, by torch version, under the file's `seen`; whether the rest of the text could stay as it was.

    Where it could not, in YAML of another form than the project's, the file is written anew and loses its comments.
    A kill at any instant leaves the old file or the new. Raises UserError when it can't be read or written.
    """
    entry = load(path)
    wanted = replace(entry, seen=in_order({**entry.seen, **verdicts}))
    if wanted.seen == entry.seen:
        return True
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from error
    text = _edited(before, wanted.seen)
    kept = _says(text, wanted)
    replace_file(path, (text if kept else dumps(wanted)).encode())
    return kept


def in_order(seen: Mapping[str, str]) -> dict[str, str]:
    """The verdicts from the oldest torch version to the newest; what is no version comes last."""
    return dict(sorted(seen.items(), key=lambda item: _place(item[0])))


def _edited(text: str, seen: Mapping[str, str]) -> str:
    line = "seen: {" + ", ".join(f'"{version}": {verdict}' for version, verdict in seen.items()) + "}\n"
    if _SEEN.search(text):
        return _SEEN.sub(lambda _: line, text, count=1)
    return f"{text if text.endswith(chr(10)) else text + chr(10)}{line}"


def _says(text: str, wanted: Entry) -> bool:
    try:
        return loads(text) == wanted
    except CaseError:
        return False


def _place(version: str) -> tuple[bool, Version, str]:
    try:
        return False, Version(version), version
    except InvalidVersion:
        return True, Version("0"), version
