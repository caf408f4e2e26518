"""A corpus entry: a case, the verdicts that it must give, and how a campaign found it.

    note: one paragraph for a person
    expect: {status: known, url: "https://...", versions: ">=2.11,<2.15", subject: inductor, verdict: wrong_result}
    expect: {status: known, versions: "openvino>=2025.4", subject: openvino}
    expect: {status: pass, subject: passes, reaches: [_sfdp_pattern_5_inference]}
    found:                          # by a campaign
      verdict: wrong_result
      subject: inductor
      fired: [_sfdp_pattern_5_inference]
      torch: "2.13.0"
      versions: {openvino: "2026.4.1"}    # of the compiler's packages, its runtime first
      device: cpu
      message: one line
      failure: {kind: wrong_value}
      rewrites: [{pattern: _sfdp_pattern_5_inference, constants: [{operation: amax}]}]
      numbers: {ratio: 12000.0}
      date: "2026-05-01T12:00:00Z"
    seen: {"2.12.0": ok, "2.14.1": compile_error IndexError}    # verdicts by version, with the exception

Versions without a package are torch's (corpus/versions.py). These keys are optional and stand beside those of the case
(`corpus.casefile`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from packaging.version import Version

from corpus import casefile, value_files
from corpus.files import read_file, replace_file
from corpus.strict_yaml import MAX_BYTES, dump, parse
from corpus.versions import TORCH, holds_for, sort_versions, spell_version, split_specifier
from generators.errors import UserError, UserErrors
from generators.program.case import Case
from generators.program.settings import read_version
from generators.records import Codec, Rule, matches, one_of

CASE_SUFFIX = ".case.yaml"
_STATUSES = ("pass", "known", "rounding")
DEVICES = ("cpu", "cuda")
DEFAULT_SUBJECT, WITH_SETTINGS = "inductor", "inductor_options"
_KEYS = ("note", "expect", "found", "seen")
_MAX_ERRORS = 10


_VerdictName = Annotated[str, matches("[a-z][a-z_]{0,30}", "is not a verdict such as wrong_result")]
_SeenVerdict = Annotated[str, matches(r"[a-z][a-z_]{0,30}( \w{1,60})?", "is not a verdict such as wrong_result")]
_Torch = Annotated[str, Rule(lambda text: not text or Version(text), "is not a version such as 2.13.0")]
_Versions = Annotated[
    str, Rule(lambda text: split_specifier(text) is not None, 'is not a version specifier such as ">=2.11,<2.15"')
]
_Device = Annotated[str, one_of(DEVICES)]


@dataclass(frozen=True, slots=True)
class Expectation:
    """The verdicts that a replay must give.

    - `pass`: no finding.
    - `rounding`: no finding, and no verdict but ok and rounding.
    - `known`: a finding of this `verdict` (empty: any) in the versions of `versions`, no finding in others.
    """

    status: Annotated[str, one_of(_STATUSES)]
    url: str = ""  # of the report of a known bug
    versions: _Versions = ""  # of torch, or of the package that it names; empty: all
    subject: str = ""  # empty: `inductor`, with settings `inductor_options`
    verdict: _VerdictName = ""
    device: _Device = ""  # empty: `cpu`
    reaches: tuple[Annotated[str, Rule(str.strip, "is not a name")], ...] = ()
    """Coverage (docs/extending.md) that the case must reach in the versions of `versions`."""

    @property
    def package(self) -> str:
        """The package that `versions` is about."""
        return split_specifier(self.versions)[0]

    def holds_for(self, versions: Mapping[str, str]) -> bool:
        """Whether `versions` contains one of these, which are by package."""
        return holds_for(self.versions, versions)

    def begins_after(self, versions: Mapping[str, str]) -> bool:
        """Whether all of `versions` are newer than these, which are by package."""
        package, wanted = split_specifier(self.versions)
        bounds = [Version(one.version) for one in wanted if one.operator in (">=", ">")]
        return any(Version(read_version(versions.get(package, "")).public) < bound for bound in bounds)


@dataclass(frozen=True, slots=True)
class Found:
    """How a campaign found the case."""

    verdict: _VerdictName
    subject: str
    fired: tuple[str, ...] = ()  # applied rewrites, without rewrites that are proven right
    torch: _Torch = ""
    versions: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # of the packages of another compiler
    device: _Device = ""
    message: str = ""  # for people
    numbers: Mapping[str, float] = field(default_factory=dict)
    date: str = ""
    failure: Mapping[str, Any] = field(default_factory=dict)  # its fields (fuzz/protocol/failures.py)
    rewrites: tuple[Mapping[str, Any], ...] = ()  # rewrites proven wrong (fuzz/protocol/rewrites.py)
    is_shrinking_cut: bool = False  # shrinking was cut off: a smaller case may fail likewise


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of a case file."""

    case: Case
    note: str = ""
    expect: Expectation | None = None
    found: Found | None = None
    seen: Mapping[str, _SeenVerdict] = field(default_factory=dict)

    @property
    def is_shrinking_cut(self) -> bool:
        """Whether shrinking was cut off."""
        return self.found is not None and self.found.is_shrinking_cut

    @property
    def expectation(self) -> Expectation:
        """`expect`; without it, the verdict of `found` in its version; without both, `pass`."""
        if self.expect is not None:
            return self.expect
        if self.found is not None:
            package, version = next(iter(self.found.versions.items()), ("", self.found.torch))
            versions = f"{package}=={Version(version).public}" if version else ""
            return Expectation("known", "", versions, self.found.subject, self.found.verdict, self.found.device)
        return Expectation("pass")

    @property
    def subject(self) -> str:
        """The subject to replay under."""
        return self.expectation.subject or (WITH_SETTINGS if self.case.settings else DEFAULT_SUBJECT)

    @property
    def package(self) -> str:
        """The package whose versions `seen` is about: that of `expect`, else the runtime under which it was found."""
        if self.expectation.versions:
            return self.expectation.package
        return next(iter(self.found.versions), TORCH) if self.found else TORCH

    def spell_version(self, versions: Mapping[str, str]) -> str:
        """The version of `package` among these, as `seen` names it."""
        version = versions.get(self.package, "")
        return spell_version(self.package, version.partition("+")[0])

    @property
    def verdict(self) -> str:
        """The verdict of the finding, else the expected verdict."""
        return self.found.verdict if self.found else self.expectation.verdict

    @property
    def device(self) -> str:
        """The device to replay on."""
        return self.expectation.device or "cpu"

    @property
    def file_name(self) -> str:
        """A file name from the verdict or status, and the case's id."""
        what = self.found.verdict if self.found else self.expect.status if self.expect else "case"
        return f"{what}-{self.case.id}{CASE_SUFFIX}"


_CODEC = Codec(strict=True)


def loads(content: bytes | str, origin: str = "case") -> Entry:
    """The entry that a text holds. Raises CaseError: one line with `origin`, line and field."""
    document = parse(content, origin)
    case = casefile.decode(document, beside=_KEYS)
    return document.decode(_CODEC, Entry, beside=casefile.KEYS, case=case)


def dumps(entry: Entry) -> str:
    """The entry as YAML text; `loads` gives back an equal entry."""
    data = casefile.encode(entry.case) | _CODEC.encode(entry)
    order = ("case_format", "note", "expect", *casefile.KEYS, "found", "seen")
    return dump({key: data[key] for key in order if key in data})


def load(path: Path) -> Entry:
    """The entry in a file, with its files of given values beside it. Raises UserError."""
    entry = loads(read_file(path, MAX_BYTES), str(path))
    value_files.note(path.parent)
    try:
        value_files.find_all(entry.case)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return entry


def save(entry: Entry, directory: Path) -> Path:
    """Write the entry under its `file_name`, and return the path. Raises UserError."""
    return write(entry, directory / entry.file_name)


def write(entry: Entry, path: Path) -> Path:
    """Write the entry to `path` with its files of given values beside it, and return the path. Raises UserError."""
    value_files.copy_files(entry.case, path.parent)  # first: a case file never names a missing file
    replace_file(path, dumps(entry).encode())
    return path


def record_seen(path: Path, verdicts: Mapping[str, str]) -> None:
    """Add verdicts by version to a file's `seen`. Its comments are lost. Raises UserError."""
    entry = load(path)
    told = {**entry.seen, **verdicts}
    seen = {version: told[version] for version in sort_versions(told)}
    if seen != entry.seen:
        write(replace(entry, seen=seen), path)


def load_directory(directory: Path) -> dict[Path, Entry]:
    """As `load_files`, for a directory that may be missing."""
    return load_files([directory]) if directory.is_dir() else {}


def load_all(paths: Sequence[Path]) -> dict[Path, Entry]:
    """As `load_files`. Also raises UserError if there is no entry."""
    if not paths:
        raise UserError(f"name at least one case file (*{CASE_SUFFIX}) or a directory of them")
    entries = load_files(paths)
    if not entries:
        raise UserError(f"no *{CASE_SUFFIX} under {', '.join(str(p) for p in paths)}")
    return entries


def load_files(paths: Iterable[Path]) -> dict[Path, Entry]:
    """The entries in these files and directories, by path. Raises UserErrors, which name the bad files."""
    entries, errors = {}, []
    for file in (
        file for path in paths for file in (sorted(path.rglob(f"*{CASE_SUFFIX}")) if path.is_dir() else [path])
    ):
        try:
            entries[file] = load(file)
        except UserError as error:
            errors.append(str(error))
    if len(errors) > _MAX_ERRORS:
        errors[_MAX_ERRORS:] = [f"and {len(errors) - _MAX_ERRORS} more bad files"]
    if errors:
        raise UserErrors(*errors)
    return entries
