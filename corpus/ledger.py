"""The ledger: the bugs that are known, one entry for each root cause, in a YAML file that people review.

    ledger_format: 1
    bugs:
      - id: constants-ignored                 # never changes; what follows may
        title: "[Inductor] attention is rewritten wrongly: constants of the program ignored"
        status: "reported https://github.com/pytorch/pytorch/issues/1"
        note: one paragraph for a person
        cause: {who: inductor, stage: joint_graph_passes, part: patterns of attention, mechanism: constants of the program ignored}
        also: [{who: ..., stage: ..., part: ..., mechanism: ...}]    # other causes that a person found to be the same
        cases: [known/constants-ignored.case.yaml]                   # examples, relative to this file
        findings: [3a0969d8f021]                                     # ids of all cases that were found of it
        first_seen: "2026-11-20"
        last_seen: "2026-11-21"
        versions: ["2.13.0"]

`status`, `title`, `note`, `also` and `cases` are a person's; `findings` and what follows is kept by
`python -m triage.cluster --update`, which also adds to `also` the words that a finding listed here has under a newer attribution.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from corpus.entry import SUFFIX
from corpus.strict_yaml import MAX_BYTES, Node, parse
from generators.errors import UserError

FORMAT = 1
NONE = Path("/dev/null")
"""What to name for no ledger."""
STATUSES = {
    "new": "",
    "reported": "the address of the issue",
    "known": "the address of the issue",
    "not_a_bug": "why it is none",
    "fixed": "the first version without it, such as 2.14.0",
}
"""Each status, and what stands behind it."""

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
_CASE_ID = re.compile(r"[0-9a-f]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CAUSE = ("who", "stage", "part", "mechanism")
_MOST = 4096


@dataclass(frozen=True, slots=True, order=True)
class CauseKey:
    """Where a fault is and how it works, in words that are equal for what one change would mend."""

    who: str
    stage: str
    part: str
    mechanism: str

    def __str__(self) -> str:
        return ", ".join(text for text in (self.who, self.stage, self.part, self.mechanism) if text)


@dataclass(frozen=True, slots=True)
class Status:
    """What a person decided about a bug: one of STATUSES, and the address, reason or version that goes with it."""

    kind: str = "new"
    about: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.about}".rstrip()

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
    """One entry. `roots`: its cause, and others that are the same bug; `cases`: example files, relative to the ledger;
    `findings`: the ids of all cases found of it; dates are days (ISO 8601), `versions` those of torch that it was met in."""

    id: str
    title: str
    roots: tuple[CauseKey, ...]
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
    _of_root: Mapping[CauseKey, Bug] = field(init=False, repr=False, compare=False)
    _of_case: Mapping[str, Bug] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of_root", {root: bug for bug in self.bugs for root in bug.roots})
        object.__setattr__(self, "_of_case", {case: bug for bug in self.bugs for case in bug.findings})

    def of_root(self, root: CauseKey) -> Bug | None:
        """The bug that has this cause."""
        return self._of_root.get(root)

    def of_case(self, case_id: str) -> Bug | None:
        """The bug that this case was found of."""
        return self._of_case.get(case_id)

    def examples(self, bug: Bug) -> list[Path]:
        """The files of its examples."""
        return [self.path.parent / name for name in bug.cases]


def load(path: Path) -> Ledger:
    """The ledger in a file, one without bugs in NONE. Raises UserError: one line with file, line and field."""
    if path == NONE:
        return Ledger(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: can't be read as a ledger: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES} bytes, so no ledger")
    return loads(content, path)


def loads(content: bytes | str, path: Path) -> Ledger:
    """The ledger that a text holds; `path` names it in messages, and its examples lie beside that."""
    root = parse(content, str(path))
    entries = root.record(("ledger_format", "bugs"))
    if entries["ledger_format"].whole() != FORMAT:
        entries["ledger_format"].fail(f"this version reads format {FORMAT}, not {entries['ledger_format'].shown()}")
    nodes = entries["bugs"].items()
    bugs = tuple(_bug(node) for node in nodes)
    _once(((bug.id, node) for bug, node in zip(bugs, nodes, strict=True)), "id")
    _once(((root, node) for bug, node in zip(bugs, nodes, strict=True) for root in bug.roots), "cause")
    _once(((case, node) for bug, node in zip(bugs, nodes, strict=True) for case in bug.findings), "finding")
    return Ledger(path, bugs)


def _bug(node: Node) -> Bug:
    entries = node.record(
        ("id", "title", "cause"), ("status", "note", "also", "cases", "findings", "first_seen", "last_seen", "versions")
    )
    if not _ID.fullmatch(entries["id"].text()):
        entries["id"].fail(f"{entries['id'].shown()} is no id: small letters, digits and dashes, at most 60")
    if not entries["title"].text().strip() or "\n" in entries["title"].text():
        entries["title"].fail("expected one line that says how the bug shows")
    also = entries["also"].items(_MOST) if "also" in entries else []
    return Bug(
        id=entries["id"].text(),
        title=entries["title"].text(),
        roots=tuple(_root(one) for one in (entries["cause"], *also)),
        status=_status(entries["status"]) if "status" in entries else Status(),
        note=entries["note"].text() if "note" in entries else "",
        cases=_texts(entries, "cases", re.compile(rf".+{re.escape(SUFFIX)}"), f"a case file (*{SUFFIX})"),
        findings=_texts(entries, "findings", _CASE_ID, "the id of a case, 12 digits and letters a to f"),
        first_seen=_date(entries, "first_seen"),
        last_seen=_date(entries, "last_seen"),
        versions=_texts(entries, "versions", re.compile(r"\S+"), "a torch version"),
    )


def _root(node: Node) -> CauseKey:
    entries = node.record(("who", "stage", "mechanism"), ("part",))
    return CauseKey(**{key: entries[key].text() if key in entries else "" for key in _CAUSE})


def _status(node: Node) -> Status:
    kind, _, about = node.text().partition(" ")
    about = about.strip()
    if kind not in STATUSES:
        node.fail(f"{kind[:40]!r} is not one of {', '.join(STATUSES)}")
    if bool(about) != bool(STATUSES[kind]):
        node.fail(f"{kind!r} stands alone" if about else f'{kind!r} wants {STATUSES[kind]}, as in "{kind} ..."')
    if kind in ("reported", "known") and not about.startswith(("https://", "http://")):
        node.fail(f"{kind!r} wants {STATUSES[kind]}, got {about[:40]!r}")
    if kind == "fixed":
        try:
            Version(about)
        except InvalidVersion:
            node.fail(f"{kind!r} wants {STATUSES[kind]}, got {about[:40]!r}")
    return Status(kind, about)


def _texts(entries: Mapping[str, Node], key: str, form: re.Pattern[str], wanted: str) -> tuple[str, ...]:
    nodes = entries[key].items(_MOST) if key in entries else []
    for node in nodes:
        if not form.fullmatch(node.text()):
            node.fail(f"{node.shown()} is not {wanted}")
    return tuple(node.text() for node in nodes)


def _date(entries: Mapping[str, Node], key: str) -> str:
    node = entries.get(key)
    if node is None:
        return ""
    if not _DATE.fullmatch(node.text()):
        node.fail(f'{node.shown()} is not a day such as "2026-05-01"')
    return node.text()


def _once(things: Iterable[tuple[object, Node]], what: str) -> None:
    seen: dict[object, Node] = {}
    for thing, node in things:
        if thing in seen:
            node.fail(f"the {what} {str(thing)!r} stands there twice, first in the entry on line {seen[thing].line}")
        seen[thing] = node
