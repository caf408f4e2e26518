"""A corpus entry: a case with its expectation, and how a campaign found it.

    note: one paragraph for a person
    expect: {status: known, url: "https://...", versions: ">=2.11,<2.15", subject: inductor, verdict: wrong_result}
    expect: {status: pass, subject: passes, reaches: [_sfdp_pattern_5_inference]}       # or so
    found:                          # by a campaign
      verdict: wrong_result
      subject: inductor
      fired: [_sfdp_pattern_5_inference]
      torch: "2.13.0"
      device: cpu
      message: one line             # for people
      failure: {kind: wrong_value}  # its fields
      rewrites: [{pattern: _sfdp_pattern_5_inference, constants: [amax]}]
      numbers: {ratio: 12000.0}
      date: "2026-05-01T12:00:00Z"
    seen: {"2.12.0": ok, "2.14.1": compile_error IndexError}    # verdicts of torch versions, and what was raised

All of it is optional, and stands in the file beside the keys of the case (`corpus.casefile`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from corpus import casefile
from corpus.files import read_file, replace_file
from corpus.records import Reader, build, checking, each, fields_of, one_of
from corpus.strict_yaml import MAX_BYTES, Node, dump, parse
from generators.errors import UserError, UserErrors
from generators.program.case import Case

SUFFIX = ".case.yaml"
STATUSES = ("pass", "known", "rounding")
DEVICES = ("cpu", "cuda")
DEFAULT_SUBJECT, WITH_SETTINGS = "inductor", "inductor_options"
_KEYS = ("note", "expect", "found", "seen")
_MAX_ERRORS = 10


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a replay must give.

    `status`: `pass`, no finding; `rounding`, no finding and nothing but rounding; `known`, in the torch versions of
    the specifier `versions` (empty: all) a finding of this `verdict` (empty: any), reported at `url`; in others none.
    `subject` and `device` say under what; empty stands for `inductor`, with settings `inductor_options`, and for `cpu`.
    `reaches`: rewrites that must be applied, and other things of the compiler that must be reached
    (docs/architecture.md), in the torch versions of `versions`.
    """

    status: str
    url: str = ""
    versions: str = ""
    subject: str = ""
    verdict: str = ""
    device: str = ""
    reaches: tuple[str, ...] = ()

    def holds_for(self, torch: str) -> bool:
        """Whether `versions` contains this torch version. Nightlies and builds such as 2.13.0+cpu count."""
        try:
            return not self.versions or SpecifierSet(self.versions).contains(Version(torch), prereleases=True)
        except InvalidVersion:
            return True


@dataclass(frozen=True, slots=True)
class Found:
    """How a campaign met the case. `fired`: the rewrites that were applied, without those proven right; `failure` and
    `rewrites`, those proven wrong, have the fields of fuzz/protocol/failures.py and rewrites.py."""

    verdict: str
    subject: str
    fired: tuple[str, ...] = ()
    torch: str = ""
    device: str = ""
    message: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    date: str = ""
    failure: Mapping[str, Any] = field(default_factory=dict)
    rewrites: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a case file holds."""

    case: Case
    note: str = ""
    expect: Expectation | None = None
    found: Found | None = None
    seen: Mapping[str, str] = field(default_factory=dict)

    @property
    def expectation(self) -> Expectation:
        """What a replay must give: `expect`; else what was found, in the version it was found in; else no finding."""
        if self.expect is not None:
            return self.expect
        if self.found is not None:
            versions = f"=={Version(self.found.torch).public}" if self.found.torch else ""
            return Expectation("known", "", versions, self.found.subject, self.found.verdict, self.found.device)
        return Expectation("pass")

    @property
    def subject(self) -> str:
        """The subject to replay under."""
        return self.expectation.subject or (WITH_SETTINGS if self.case.settings else DEFAULT_SUBJECT)

    @property
    def verdict(self) -> str:
        """What it was found with, else what is expected of it."""
        return self.found.verdict if self.found else self.expectation.verdict

    @property
    def device(self) -> str:
        """The device to replay on."""
        return self.expectation.device or "cpu"

    @property
    def file_name(self) -> str:
        """A file name from the verdict or status, and the case's id."""
        what = self.found.verdict if self.found else self.expect.status if self.expect else "case"
        return f"{what}-{self.case.id}{SUFFIX}"


def _read_versions(node: Node) -> dict[str, str]:
    return {version: _SEEN(verdict) for version, verdict in node.entries().items()}


_VERDICT = checking(re.compile(r"[a-z][a-z_]{0,30}").fullmatch, "is not a verdict such as wrong_result")
_SEEN = checking(re.compile(r"[a-z][a-z_]{0,30}( \w{1,60})?").fullmatch, "is not a verdict such as wrong_result")
_EXPECT = {
    "status": one_of(STATUSES),
    "versions": checking(
        lambda text: SpecifierSet(text) is not None, 'is not a version specifier such as ">=2.11,<2.15"'
    ),
    "verdict": _VERDICT,
    "device": one_of(DEVICES),
    "reaches": each(checking(str.strip, "is not a name")),
}
_FOUND = {
    "verdict": _VERDICT,
    "device": one_of(DEVICES),
    "torch": checking(lambda text: not text or Version(text), "is not a version such as 2.13.0"),
}
_FIELDS: Mapping[str, Reader] = {
    "expect": partial(build, Expectation, readers=_EXPECT),
    "found": partial(build, Found, readers=_FOUND),
    "seen": _read_versions,
}


def loads(content: bytes | str, origin: str = "case") -> Entry:
    """The entry that a text holds. Raises CaseError: one line with `origin`, line and field."""
    root = parse(content, origin)
    casefile.check_format(root)
    root.record((), (*casefile.KEYS, *_KEYS))
    return build(Entry, root.select(_KEYS), _FIELDS, case=casefile.decode(root.select(casefile.KEYS)))


def dumps(entry: Entry) -> str:
    """The entry as YAML text; `loads` gives back an equal entry."""
    data = casefile.encode(entry.case) | fields_of(entry, without=("case",))
    order = ("case_format", "note", "expect", *casefile.KEYS, "found", "seen")
    return dump({key: data[key] for key in order if key in data})


def load(path: Path) -> Entry:
    """The entry in a file. Raises UserError when the file can't be read or holds none."""
    return loads(read_file(path, MAX_BYTES), str(path))


def save(entry: Entry, directory: Path) -> Path:
    """Write the entry under its `file_name`, and return the path. Raises UserError, as `replace_file` does."""
    return write(entry, directory / entry.file_name)


def write(entry: Entry, path: Path) -> Path:
    """Write the entry to `path`, as `save` does."""
    replace_file(path, dumps(entry).encode())
    return path


def record_seen(path: Path, verdicts: Mapping[str, str]) -> None:
    """Add verdicts by torch version to a file's `seen`; comments in the file are lost. Raises UserError, as `load` and
    `save` do."""
    entry = load(path)
    seen = sort_by_version({**entry.seen, **verdicts})
    if seen != entry.seen:
        write(replace(entry, seen=seen), path)


def sort_by_version(verdicts: Mapping[str, str]) -> dict[str, str]:
    """The verdicts, oldest torch version first. Names that are not versions come last."""

    def key(version: str) -> tuple[bool, Version, str]:
        try:
            return False, Version(version), version
        except InvalidVersion:
            return True, Version("0"), version

    return dict(sorted(verdicts.items(), key=lambda item: key(item[0])))


def load_directory(directory: Path) -> dict[Path, Entry]:
    """All entries under a directory, by path; none without the directory. Raises UserError, as `load_files` does."""
    return load_files([directory]) if directory.is_dir() else {}


def load_all(paths: Sequence[Path]) -> dict[Path, Entry]:
    """The entries in these files and directories. Raises UserError when there are none, and as `load_files` does."""
    if not paths:
        raise UserError(f"name at least one case file (*{SUFFIX}) or a directory of them")
    entries = load_files(paths)
    if not entries:
        raise UserError(f"no *{SUFFIX} under {', '.join(str(p) for p in paths)}")
    return entries


def load_files(paths: Iterable[Path]) -> dict[Path, Entry]:
    """The entries in these files and directories. Raises UserErrors, which name the bad files."""
    entries, errors = {}, []
    for file in (file for path in paths for file in (sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path])):
        try:
            entries[file] = load(file)
        except UserError as error:
            errors.append(str(error))
    if len(errors) > _MAX_ERRORS:
        errors[_MAX_ERRORS:] = [f"and {len(errors) - _MAX_ERRORS} more bad files"]
    if errors:
        raise UserErrors(*errors)
    return entries
