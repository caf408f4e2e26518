"""The ledger: the known bugs, one entry for each root cause, in a YAML file that people review.

docs/triage.md has an example, and says who writes which field. `python -m triage.cluster --update` also adds to `also`
the cause that a newer attribution gives a listed finding.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from corpus.causes import CauseKey, Details, MechanismKind, Part, Stage
from corpus.entry import SUFFIX
from corpus.files import read_file, replace_file, require_writable
from corpus.records import build, checking, each, fields_of, one_of, read, to_data
from corpus.strict_yaml import MAX_BYTES, Data, Node, decode, dump_flow, parse
from generators.errors import UserError

FORMAT = 2
NONE = Path("/dev/null")
"""What to name for no ledger."""
STATUSES = {
    "new": "",
    "reported": "the URL of the issue",
    "known": "the URL of the issue",
    "not_a_bug": "the reason",
    "fixed": "the first version without it, such as 2.14.0",
}
"""Each status, and what must follow it."""

_KEPT = ("findings", "first_seen", "last_seen", "versions")
"""The fields that no person writes."""
_ORDER = ("id", "title", "status", "note", "cause", "also", "cases", *_KEPT)
_HEAD = """\
# Known bugs, one entry for each root cause. docs/triage.md says what the fields mean and who writes them.
"""


@dataclass(frozen=True, slots=True)
class Status:
    """What a person decided about a bug: one of STATUSES, and the address, reason or version that goes with it."""

    kind: str = "new"
    about: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.about}".rstrip()

    @property
    def words(self) -> str:
        """For people."""
        kind = {"new": "nobody has decided about it yet", "not_a_bug": "not a bug:", "fixed": "fixed in"}.get(
            self.kind, self.kind
        )
        return f"{kind} {self.about}".rstrip()

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided about the bug yet."""
        return self.kind == "new"

    def is_back_in(self, torch: str) -> bool:
        """Whether the bug should be gone from this torch version, so that meeting it there is a regression."""
        if self.kind != "fixed":
            return False
        try:
            return Version(torch) >= Version(self.about)
        except InvalidVersion:
            return True  # a build of somebody's own, made after the fix as far as anybody knows


@dataclass(frozen=True, slots=True)
class Bug:
    """One entry. `causes`: its own, then other causes that are the same bug; `cases`: example files, relative to the
    ledger; `findings`: the ids of all cases with this bug; dates are ISO 8601; `versions`: torch versions with it."""

    id: str
    title: str
    causes: tuple[CauseKey, ...]
    status: Status = Status()
    note: str = ""
    cases: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    first_seen: str = ""
    last_seen: str = ""
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bugs of one file. No cause and no finding belongs to two of them."""

    path: Path
    bugs: tuple[Bug, ...] = ()

    def find_cause(self, cause: CauseKey) -> Bug | None:
        """The bug that has this cause."""
        return next((bug for bug in self.bugs if cause in bug.causes), None)

    def find_case(self, case_id: str) -> Bug | None:
        """The bug that this case was found of."""
        return next((bug for bug in self.bugs if case_id in bug.findings), None)

    def examples(self, bug: Bug) -> list[Path]:
        """The files of its examples."""
        return [self.path.parent / name for name in bug.cases]


def load(path: Path) -> Ledger:
    """The ledger in a file; an empty one for NONE. Raises UserError: one line with file, line and field."""
    return Ledger(path) if path == NONE else loads(read_file(path, MAX_BYTES), path)


def loads(content: bytes | str, path: Path) -> Ledger:
    """The ledger that a text holds; `path` names it in messages, and its examples lie beside that."""
    root = parse(content, str(path))
    entries = root.record(("ledger_format", "bugs"))
    if entries["ledger_format"].integer() != FORMAT:
        entries["ledger_format"].fail(f"this version reads format {FORMAT}, not {entries['ledger_format'].describe()}")
    nodes = entries["bugs"].items()
    bugs = tuple(_bug(node) for node in nodes)
    _once(((bug.id, node) for bug, node in zip(bugs, nodes, strict=True)), "id")
    _once(((cause, node) for bug, node in zip(bugs, nodes, strict=True) for cause in bug.causes), "cause")
    _once(((case, node) for bug, node in zip(bugs, nodes, strict=True) for case in bug.findings), "finding")
    return Ledger(path, bugs)


def _bug(node: Node) -> Bug:
    entries = node.record(("id", "title", "cause"), _ORDER)
    causes = (entries["cause"], *(entries["also"].items() if "also" in entries else ()))
    rest = node.select([key for key in _ORDER if key not in ("cause", "also")])
    return build(Bug, rest, _FIELDS, causes=tuple(map(_read_cause, causes)))


def _read_cause(node: Node) -> CauseKey:
    given: dict[str, Any] = {} if "part" in node.entries() else {"part": ""}
    return build(CauseKey, node, _CAUSE, **given)


def _read_details(node: Node) -> Details:
    return tuple(sorted((name, read(tuple[str, ...], given)) for name, given in node.entries().items()))


_PART_LABELS = {part.label for part in Part} - {*Part}
_CAUSE = {
    "stage": lambda node: Stage(one_of(list(Stage))(node)),
    "part": checking(lambda text: text not in _PART_LABELS, "is the label of a part, not its id"),
    "mechanism": lambda node: MechanismKind(one_of(list(MechanismKind))(node)),
    **dict.fromkeys(("details", "right", "wrong"), _read_details),
}


def _status(node: Node) -> Status:
    kind, _, about = node.text().partition(" ")
    about = about.strip()
    if kind not in STATUSES:
        node.fail(f"{kind[:40]!r} is not one of {', '.join(STATUSES)}")
    if bool(about) != bool(STATUSES[kind]):
        node.fail(f"nothing may follow {kind!r}" if about else f'{kind!r} needs {STATUSES[kind]}, as in "{kind} ..."')
    if kind in ("reported", "known") and not about.startswith(("https://", "http://")):
        node.fail(f"{kind!r} needs {STATUSES[kind]}, got {about[:40]!r}")
    if kind == "fixed":
        try:
            Version(about)
        except InvalidVersion:
            node.fail(f"{kind!r} needs {STATUSES[kind]}, got {about[:40]!r}")
    return Status(kind, about)


_DATE = checking(re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch, 'is not a date such as "2026-05-01"')
_CASE_ID = checking(re.compile(r"[0-9a-f]{12}").fullmatch, "is not the id of a case, 12 digits and letters a to f")
_FIELDS = {
    "id": checking(
        re.compile(r"[a-z0-9][a-z0-9._-]{0,59}").fullmatch, "must be at most 60 lowercase letters, digits and dashes"
    ),
    "title": checking(re.compile(r"(?=.*\S).+").fullmatch, "must be one line that describes the symptom"),
    "status": _status,
    "cases": each(checking(re.compile(rf".+{re.escape(SUFFIX)}").fullmatch, f"is not a case file (*{SUFFIX})")),
    "findings": each(_CASE_ID),
    "first_seen": _DATE,
    "last_seen": _DATE,
    "versions": each(checking(re.compile(r"\S+").fullmatch, "is not a torch version")),
}


def _once(things: Iterable[tuple[object, Node]], what: str) -> None:
    seen: dict[object, Node] = {}
    for thing, node in things:
        if thing in seen:
            node.fail(f"the {what} {str(thing)!r} is listed twice, first in the entry on line {seen[thing].line}")
        seen[thing] = node


def save(ledger: Ledger) -> None:
    """Bring the ledger's file up to date. The comments above the first key stay, and what a person wrote in an entry.

    Missing entries are added. In the others `findings`, `first_seen`, `last_seen` and `versions` are replaced, and
    missing causes are added to `also`. A kill at any instant leaves the old file or the new. Raises UserError.
    """
    path, head, bugs = ledger.path, _HEAD, dict[str, Bug]()
    if path.exists():
        text = decode(read_file(path, MAX_BYTES), str(path))
        lines = text.splitlines(keepends=True)
        head = "".join(itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), lines))
        bugs = {bug.id: bug for bug in loads(text, path).bugs}
    for bug in ledger.bugs:
        before = bugs.get(bug.id, bug)
        # A finding that moved to another entry would be listed twice, so that no findings replace some.
        kept: dict[str, Any] = {key: getattr(bug, key) for key in _KEPT if key == "findings" or getattr(bug, key)}
        bugs[bug.id] = replace(before, causes=tuple(dict.fromkeys((*before.causes, *bug.causes))), **kept)
    entries = ([f"{key}: {dump_flow(value)}" for key, value in _entry(bug).items()] for bug in bugs.values())
    body = "\n\n".join("  - " + "\n    ".join(lines) for lines in entries)
    written = f"{head}ledger_format: {FORMAT}\nbugs:" + (f"\n{body}\n" if bugs else " []\n")
    loads(written, path)  # nothing is written that can't be read again
    replace_file(path, written.encode())


def check_writable(path: Path) -> None:
    """Raises UserError where no ledger can be written."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file, so the ledger can't be updated")
    require_writable(path, "--ledger", is_file=True)


def _entry(bug: Bug) -> dict[str, Data]:
    data = fields_of(bug, always=("id", "title"), without=("causes", "status"))
    cause, *also = [_cause_data(cause) for cause in bug.causes]
    written: dict[str, Data] = {"status": str(bug.status), "cause": cause, "also": also}
    return {key: value for key in _ORDER if (value := {**data, **written}.get(key))}


def _cause_data(cause: CauseKey) -> Data:
    lists = ("details", "right", "wrong")
    data = fields_of(cause, without=lists if cause.part else ("part", *lists))
    return data | {name: to_data(dict(given)) for name in lists if (given := getattr(cause, name))}
