"""The ledger: the known bugs, one entry for each root cause, in a YAML file that people review.

docs/triage.md has an example, and says who writes which field.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from packaging.version import InvalidVersion, Version

from corpus.causes import CauseKey, Details, Project, find_project
from corpus.entry import CASE_SUFFIX
from corpus.fault import FaultyLine
from corpus.files import read_file, replace_file, require_writable
from corpus.strict_yaml import MAX_BYTES, Data, Document, decode_text, dump_flow, parse
from corpus.upstream import Issue, Upstream
from corpus.versions import split_version
from generators.errors import UserError
from generators.program.settings import read_version
from generators.records import ALWAYS, KEYED, SORTED, Codec, RecordError, RecordForm, matches, read_mapping

_FORMAT = 3
LEDGER = Path(__file__).resolve().with_name("ledger.yaml")
"""The ledger of this checkout."""
NONE = Path("/dev/null")
"""The path that names no ledger."""
_STATUSES = {
    "new": "",
    "reported": "the URL of the issue",
    "set_apart": "the reason and its source",
    "not_a_bug": "the reason",
    "fixed": "the first version without it, such as 2.14.0 or openvino 2026.5.0",
}
"""The text that must follow each status."""

_KEPT = ("findings", "first_seen", "last_seen", "versions", "seen_in", "reached_in")
"""Fields that `triage.cluster --update` and `benchmarks.model_evidence` write, and no person."""
_ENTRY = re.compile(r"^  - .*(?:\n(?:    .*)?)*", re.MULTILINE)
"""The text of an entry, as this module writes it."""
_HEAD = """\
# Known bugs, one entry for each root cause. docs/triage.md says what the fields mean and who writes them.
"""


@dataclass(frozen=True, slots=True)
class Status:
    """A person's decision about a bug: one of _STATUSES, with its URL, reason or version."""

    kind: str = "new"
    about: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.about}".rstrip()

    @property
    def words(self) -> str:
        """In words, for people."""
        kind = {"not_a_bug": "not a bug:", "fixed": "fixed in", "set_apart": "set apart:"}.get(self.kind, self.kind)
        return f"{kind} {self.about}".rstrip()

    def is_back_in(self, versions: Mapping[str, str]) -> bool:
        """Whether the bug should be gone from these versions, by package, so that meeting it there is a regression."""
        package, first = split_version(self.about)
        return self.kind == "fixed" and package in versions and read_version(versions[package]) >= Version(first)


_Id = Annotated[str, matches("[a-z0-9][a-z0-9._-]{0,59}", "must be at most 60 lowercase letters, digits and dashes")]
_Title = Annotated[str, matches(r"(?=.*\S).+", "must be one line that describes the symptom")]
_CaseFile = Annotated[str, matches(rf".+{re.escape(CASE_SUFFIX)}", f"is not a case file (*{CASE_SUFFIX})")]
_CaseId = Annotated[str, matches("[0-9a-f]{12}", "is not the id of a case, 12 digits and letters a to f")]
_Date = Annotated[str, matches("[0-9]{4}-[0-9]{2}-[0-9]{2}", 'is not a date such as "2026-05-01"')]
_Version = Annotated[str, matches(r"(\S+ )?\S+", "is not a version such as 2.14.0 or openvino 2026.4.1")]


@dataclass(frozen=True, slots=True)
class Bug:
    """One entry."""

    id: _Id
    title: _Title
    status: Annotated[Status, ALWAYS] = Status()
    note: str = ""
    upstream: Upstream | None = field(default=None, kw_only=True)  # None: nobody has searched for it
    fault: FaultyLine | None = field(default=None, kw_only=True)
    cause: CauseKey = field(kw_only=True)
    decided_by: Annotated[Details, KEYED, SORTED] = field(kw_only=True)  # experiments (fuzz/attribution/decide.py)
    also: tuple[CauseKey, ...] = ()  # other causes that are the same bug
    cases: tuple[_CaseFile, ...] = ()  # examples, relative to the ledger
    findings: tuple[_CaseId, ...] = ()  # all cases with this bug
    first_seen: _Date = ""
    last_seen: _Date = ""
    versions: tuple[_Version, ...] = ()  # with this bug, of the project's package
    seen_in: tuple[str, ...] = ()  # released models that show it, each with the block and the variant
    reached_in: tuple[str, ...] = ()  # released models that run the rewrite or operation at fault, right or wrong

    @property
    def causes(self) -> tuple[CauseKey, ...]:
        """`cause`, then `also`."""
        return (self.cause, *self.also)

    @property
    def project(self) -> Project:
        """Where it is reported."""
        return find_project(self.cause.who)

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided about the bug yet, here or upstream."""
        return self.status.kind == "new" and not self.known_upstream

    @property
    def known_upstream(self) -> tuple[Issue, ...]:
        """The issues of others about the same bug."""
        return self.upstream.same if self.upstream else ()

    @property
    def standing(self) -> str:
        """As `spell_standing`."""
        return spell_standing(self.status, self.upstream)


def spell_standing(status: Status, upstream: Upstream | None) -> str:
    """The decision of people about a bug, here and upstream, in words."""
    if upstream and upstream.same and status.kind == "new":
        return str(upstream)
    return f"{status.words}, {upstream or 'not searched for upstream'}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bugs of one file. No cause and no finding belongs to two of them."""

    path: Path
    bugs: tuple[Bug, ...] = ()

    def find_cause(self, cause: CauseKey) -> Bug | None:
        """The bug that has this cause."""
        return next((bug for bug in self.bugs if cause in bug.causes), None)

    def find_case(self, case_id: str) -> Bug | None:
        """The bug that lists this case as a finding."""
        return next((bug for bug in self.bugs if case_id in bug.findings), None)

    def examples(self, bug: Bug) -> list[Path]:
        """The files of its examples."""
        return [self.path.parent / name for name in bug.cases]


def load(path: Path) -> Ledger:
    """The ledger in a file; an empty one for NONE. Raises UserError: one line with file, line and field."""
    return Ledger(path) if path == NONE else loads(read_file(path, MAX_BYTES), path)


def loads(content: bytes | str, path: Path) -> Ledger:
    """The ledger in a text; `path` names it in messages, and its examples lie beside that path."""
    document = parse(content, str(path))
    document.require_format("ledger_format", _FORMAT)
    bugs = document.decode(_CODEC, _File).bugs
    numbered = [*enumerate(bugs)]
    _require_unique(document, "id", ((i, bug.id) for i, bug in numbered))
    _require_unique(document, "cause", ((i, cause) for i, bug in numbered for cause in bug.causes))
    _require_unique(document, "finding", ((i, case) for i, bug in numbered for case in bug.findings))
    return Ledger(path, bugs)


def _require_unique(document: Document, what: str, things: Iterable[tuple[int, object]]) -> None:
    seen: dict[object, int] = {}
    for number, thing in things:
        if thing in seen:
            first = document.lines["bugs", seen[thing]]
            reason = f"the {what} {str(thing)!r} is listed twice, first in the entry on line {first}"
            document.fail(f"bugs[{number}]: {reason}", ("bugs", number))
        seen[thing] = number


def save(ledger: Ledger) -> None:
    """Bring the ledger's file up to date. Keeps comments above the first key, entries that do not change byte for byte,
    and all text that a person wrote.

    Missing entries are added. In existing entries `findings`, `first_seen`, `last_seen` and `versions` are replaced,
    and missing causes are added to `also`. After a kill the file has its old or its new content. Raises UserError.
    """
    path, head, bugs, texts = ledger.path, _HEAD, dict[str, Bug](), dict[Bug, str]()
    if path.exists():
        text = decode_text(read_file(path, MAX_BYTES), str(path))
        lines = text.splitlines(keepends=True)
        head = "".join(itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), lines))
        bugs = {bug.id: bug for bug in loads(text, path).bugs}
        found = [match.rstrip() for match in _ENTRY.findall(text)]
        texts = dict(zip(bugs.values(), found, strict=True)) if len(found) == len(bugs) else {}
    for bug in ledger.bugs:
        before = bugs.get(bug.id, bug)
        # An empty list replaces the old findings too: a finding that moved to another entry would be listed twice.
        kept: dict[str, Any] = {key: getattr(bug, key) for key in _KEPT if key == "findings" or getattr(bug, key)}
        bugs[bug.id] = replace(before, also=tuple(dict.fromkeys((*before.causes, *bug.causes)))[1:], **kept)
    body = "\n\n".join(texts.get(bug) or _dump(bug) for bug in bugs.values())
    written = f"{head}ledger_format: {_FORMAT}\nbugs:" + (f"\n{body}\n" if bugs else " []\n")
    loads(written, path)  # nothing is written that can't be read again
    replace_file(path, written.encode())


def _dump(bug: Bug) -> str:
    return "  - " + "\n    ".join(f"{key}: {dump_flow(value)}" for key, value in _CODEC.encode(bug).items())


def check_writable(path: Path) -> None:
    """Raises UserError if no ledger can be written there."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file, so the ledger can't be updated")
    require_writable(path, "--ledger", is_file=True)


@dataclass(frozen=True, slots=True)
class _File:
    ledger_format: int
    bugs: tuple[Bug, ...]


def _read_cause(data: Any) -> CauseKey:
    return _FIELDS.decode(CauseKey, {"part": "", **read_mapping(data)})


def _write_cause(cause: CauseKey) -> dict[str, Data]:
    return {key: value for key, value in _FIELDS.encode(cause).items() if value}


def _read_status(data: Any) -> Status:
    kind, _, about = _FIELDS.read(str, data).partition(" ")
    about, needs = about.strip(), _STATUSES.get(kind)
    if needs is None:
        raise RecordError(f"{kind[:40]!r} is not one of {', '.join(_STATUSES)}")
    if bool(about) != bool(needs):
        raise RecordError(f"nothing may follow {kind!r}" if about else f'{kind!r} needs {needs}, as in "{kind} ..."')
    try:
        is_good = kind != "reported" or about.startswith(("https://", "http://"))
        is_good = is_good and (kind != "fixed" or bool(Version(split_version(about)[1])))
    except InvalidVersion:
        is_good = False
    if not is_good:
        raise RecordError(f"{kind!r} needs {needs}, got {about[:40]!r}")
    return Status(kind, about)


_FIELDS = Codec(strict=True)
_CODEC = Codec(
    strict=True, forms={Status: RecordForm(_read_status, str), CauseKey: RecordForm(_read_cause, _write_cause)}
)
