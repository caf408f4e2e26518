"""Writing a ledger: what a person wrote, comments included, stays as it is."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from corpus.atomic_write import replace_file
from corpus.ledger import Bug, CauseKey, Ledger, loads
from corpus.strict_yaml import plain
from generators.errors import UserError

_HEAD = """\
# Bugs that are known, one entry for each root cause. docs/triage.md says what the fields mean and who writes them.
ledger_format: 1
bugs: []
"""


def save(ledger: Ledger) -> None:
    """Write the ledger's file: entries that it lacks are added, of others `findings`, `first_seen`, `last_seen` and
    `versions` are replaced, and causes that they lack are added to `also`. A kill at any instant leaves the old file or the new. Raises UserError.
    """
    check(ledger.path)
    text = ledger.path.read_text(encoding="utf-8") if ledger.path.exists() else _HEAD
    causes = {bug.id: bug.roots for bug in loads(text, ledger.path).bugs}
    yaml = _editor(text)
    data = yaml.load(text)
    if not data["bugs"]:
        data["bugs"] = CommentedSeq()
    there = {entry["id"]: entry for entry in data["bugs"]}
    for bug in ledger.bugs:
        entry = there.get(bug.id)
        if entry is None:
            entry = _entry(bug)
            data["bugs"].append(entry)
            if len(data["bugs"]) > 1:
                data["bugs"].yaml_set_comment_before_after_key(len(data["bugs"]) - 1, before="\n")
        _keep(entry, bug)
        _join(entry, [root for root in bug.roots if root not in causes.get(bug.id, bug.roots)])
    stream = io.StringIO()
    yaml.dump(data, stream)
    loads(stream.getvalue(), ledger.path)  # nothing is written that can't be read again
    replace_file(ledger.path, stream.getvalue().encode())


def check(path: Path) -> None:
    """Raises UserError where no ledger can be written, nor anything beside it."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no file, so no ledger to bring up to date")


def _editor(text: str) -> YAML:
    """Reads and writes YAML with its comments, quotes and indentation."""
    yaml = YAML()
    yaml.width = 1 << 16
    yaml.preserve_quotes = True
    dash = re.search(r"^( *)- ", text, re.MULTILINE)
    offset = len(dash[1]) if dash else 2
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _entry(bug: Bug) -> CommentedMap:
    entry = CommentedMap()
    entry["id"] = _text(bug.id)
    entry["title"] = _text(bug.title)
    entry["status"] = _text(str(bug.status))
    if bug.note:
        entry["note"] = _text(bug.note)
    entry["cause"] = _cause(bug.roots[0])
    if bug.roots[1:]:
        entry["also"] = CommentedSeq(_cause(root) for root in bug.roots[1:])
    if bug.cases:
        entry["cases"] = _list(bug.cases)
    return entry


def _keep(entry: CommentedMap, bug: Bug) -> None:
    """The fields of an entry that no person writes."""
    fields: dict[str, Any] = {
        "findings": _list(bug.findings),
        "first_seen": _text(bug.first_seen),
        "last_seen": _text(bug.last_seen),
        "versions": _list(bug.versions),
    }
    for key, value in fields.items():
        # An empty list replaces one too: a finding that moved to another entry would stand there twice.
        if entry.get(key) != value and (value or (key == "findings" and key in entry)):
            entry[key] = value


def _join(entry: CommentedMap, roots: Sequence[CauseKey]) -> None:
    """Other causes that turned out to be this bug, behind those that stand there."""
    if roots and not entry.get("also"):
        also = CommentedSeq()
        if "also" in entry:
            entry["also"] = also
        else:
            entry.insert(list(entry).index("cause") + 1, "also", also)
    for root in roots:
        entry["also"].append(_cause(root))


def _cause(root: CauseKey) -> CommentedMap:
    fields = {"who": root.who, "stage": root.stage, "part": root.part, "mechanism": root.mechanism}
    cause = CommentedMap({key: _text(value) for key, value in fields.items() if value or key != "part"})
    cause.fa.set_flow_style()
    return cause


def _list(texts: tuple[str, ...]) -> CommentedSeq:
    items = CommentedSeq(_text(text) for text in texts)
    items.fa.set_flow_style()
    return items


def _text(text: str) -> str:
    """Text as the strict reader takes it."""
    return text if plain(text) else DoubleQuotedScalarString(text)
