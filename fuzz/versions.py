"""Cases replayed under several torch versions: which regressed, were fixed, or fail in all."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from packaging.version import InvalidVersion, Version

from corpus.entry import Entry
from corpus.versions import TORCH, sort_versions, spell_version, spell_versions, split_version
from fuzz.ask.evaluator import Evaluator
from fuzz.ask.question import Asker, ProcessState, Question, ask_or_raise
from fuzz.ask.transport import CompilersOff
from fuzz.bug_identity import compare_outcome, kind_of
from fuzz.changed_rewrites import describe_changed, has_rewrites
from fuzz.cli import ignore_lost_output
from fuzz.compilers.table import COMPILERS
from fuzz.durations import format_count
from fuzz.experiments import Outcome, Tried
from fuzz.protocol import Hello, SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Raised, Refusal
from fuzz.protocol.render import describe
from fuzz.subjects import list_packages
from generators.errors import UserError
from generators.records import Word

_LONGEST = 300


class VersionChange(Word):
    """How the verdict of a case changes from the first version to the last, in the order of the table."""

    REGRESSED = "regressed", "passes in an earlier version and fails in the last one"
    FIXED = "fixed", "fails in an earlier version and passes in the last one"
    FAILS = "fails in all", "a finding in every version that could judge it"
    UNSTEADY = "not reproducible", "a fresh worker contradicts the first one, so versions are not compared"
    UNJUDGED = "not compared", "fewer than two versions pass or fail"
    SAME = "no change", "passes in all"


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A case under one subject in all versions, first to last."""

    path: Path
    subject: str
    results: dict[str, SubjectResult]  # by the label of the version
    is_reproduced: bool = True  # by fresh workers, if versions differ

    @property
    def compared(self) -> list[Tried]:
        """The versions that pass or fail, compared with the last failure."""
        failing = [result for result in self.results.values() if result.verdict.is_finding]
        outcomes = {label: compare_outcome(result, (failing or [result])[-1]) for label, result in self.results.items()}
        return [Tried("torch", label, one) for label, one in outcomes.items() if one is not Outcome.DOES_NOT_APPLY]

    @property
    def change(self) -> VersionChange:
        """How the verdict changes."""
        passes = [one.flips for one in self.compared]
        if len(passes) < 2:
            return VersionChange.UNJUDGED
        if not self.is_reproduced:
            return VersionChange.UNSTEADY
        if all(passes) or not any(passes):
            return VersionChange.SAME if all(passes) else VersionChange.FAILS
        return VersionChange.FIXED if passes[-1] else VersionChange.REGRESSED

    @property
    def changed_rewrites(self) -> list[str]:
        """As `describe_changed`, of the versions that compiled and ran the case. No verdict depends on it."""
        compiled = {label: one for label, one in self.results.items() if has_rewrites(one.verdict)}
        return describe_changed({label: one.applied_rewrites for label, one in compiled.items()})


A = TypeVar("A", bound=Asker)


def list_versions(hello: Hello, subjects: Iterable[str]) -> list[str]:
    """The versions of torch and of the runtimes that these subjects need, as `spell_version` writes them."""
    names = dict.fromkeys((TORCH, *(name for subject in subjects for name in list_packages(subject)[:1])))
    return [spell_version(name, public_version(hello.packages[name])) for name in names if name in hello.packages]


def distinguish_versions(hellos: Sequence[Hello], subjects: Collection[str]) -> list[str]:
    """For each worker the versions in which they differ; the version of torch if they do not."""
    listed = [list_versions(hello, subjects) for hello in hellos]
    shared = set[str]().union(*listed).intersection(*listed)
    return [" with ".join([one for one in told if one not in shared] or told[:1]) for told in listed]


def start_versions(askers: Sequence[A], subjects: Collection[str]) -> dict[str, A]:
    """Start all workers before any work, and label their versions.

    Raises `UserError` for an interpreter that can't be used, and for a subject that no version has.
    """
    hellos = [asker.hello for asker in askers]
    known = {subject for hello in hellos for subject in hello.subjects}
    if known and (unknown := {*subjects} - known):
        raise UserError(f"unknown subject {min(unknown)!r}; there are {', '.join(sorted(known))}")
    labels = [
        " with ".join(filter(None, (label, asker.config.patch)))
        for label, asker in zip(distinguish_versions(hellos, subjects), askers, strict=True)
    ]
    if len(set(labels)) < len(labels):
        numbered = enumerate(zip(labels, askers, strict=True), 1)
        labels = [f"{number}: {torch} ({asker.config.python})" for number, (torch, asker) in numbered]
    return dict(zip(labels, askers, strict=True))


def compare_all(
    tasks: Sequence[tuple[Path, Entry, str]], versions: Mapping[str, Evaluator], device: str | None, *, quiet: bool
) -> Iterator[VersionRow]:
    """The row of each case and subject. `device`: by default that of the case. `quiet`: print no progress."""
    for number, (path, entry, subject) in enumerate(tasks, 1):
        if not quiet:
            with ignore_lost_output():
                told = f"{number} of {len(tasks)}: {path} under {subject}"
                print(told, file=sys.stderr, flush=True)  # noqa: T201 - progress
        askers = {label: evaluator.on(device or entry.device) for label, evaluator in versions.items()}
        yield compare_versions(path, entry, subject, askers)


def compare_versions(path: Path, entry: Entry, subject: str, versions: Mapping[str, Asker]) -> VersionRow:
    """Replay a case under every version. A regression or a fix is replayed by fresh workers."""

    def replay(label: str, process: ProcessState = ProcessState.WARM) -> SubjectResult:
        try:
            if subject in versions[label].hello.subjects:
                return ask_or_raise(versions[label], Question(entry.case, (subject,), process=process))
            why = f"{spell_label(label)} has no {subject}"
        except CompilersOff:
            raise
        except UserError as error:
            why = str(error)
        return SubjectResult(subject, Verdict.SKIPPED, failure=NotTaken(Refusal.NO_VERDICT, why))

    row = VersionRow(path, subject, {label: replay(label) for label in versions})
    if row.change not in (VersionChange.REGRESSED, VersionChange.FIXED):
        return row
    # A change needs the last version, and the latest version that differs from it.
    *earlier, last = row.compared
    *_, differing = (one for one in earlier if one.flips is not last.flips)
    again = {one.argument: replay(one.argument, ProcessState.FRESH) for one in (last, differing)}
    compared = replace(row, results=row.results | again).compared
    return replace(row, is_reproduced=[one.flips for one in compared] == [one.flips for one in row.compared])


def read_verdicts(entry: Entry) -> dict[str, Verdict]:
    """The verdicts that a case file records, by the version of its `package`."""
    verdicts = {verdict.value: verdict for verdict in Verdict}
    seen = {version: text for version, text in entry.seen.items() if split_version(version)[0] == entry.package}
    words = {public_version(version): text.partition(" ")[0] for version, text in seen.items()}
    return {version: verdicts[word] for version, word in words.items() if word in verdicts}


def list_failing(entry: Entry) -> list[str]:
    """The recorded versions, oldest first, that fail as the case was found to. Another failure may be another bug."""
    verdicts, kind = read_verdicts(entry), kind_of(Verdict(entry.verdict)) if entry.verdict else None
    failing = (torch for torch, found in verdicts.items() if (kind_of(found) == kind if kind else found.is_finding))
    return sort_versions(failing)


def spell_verdict(result: SubjectResult) -> str:
    """A verdict as case files record it: with the exception if one was raised."""
    return f"{result.verdict} {result.failure.error}" if isinstance(result.failure, Raised) else str(result.verdict)


def render_table(rows: Sequence[VersionRow], labels: Iterable[str], n_wanted: int) -> str:
    """The table for a terminal. Cases without change are only counted. `n_wanted`: rows of a complete table."""
    lines, counts = [], []
    for change in VersionChange:
        found = [row for row in rows if row.change is change]
        counts += [f"{len(found)} {change}"] if found else []
        if found and change is not VersionChange.SAME:
            listed = [line for row in found for line in _describe_row(row)]
            lines += [f"{change} ({len(found)}): {change.label}", *listed, ""]
    if other := [row for row in rows if row.changed_rewrites]:
        listed = [
            line for row in other for line in (f"  {row.path} under {row.subject}", *_indent(row.changed_rewrites))
        ]
        lines += [f"other rewrites ({len(other)}): applied in one version, not in another", *listed, ""]
        counts.append(f"{len(other)} with other rewrites")
    cut = f" of {n_wanted}, then interrupted" if len(rows) < n_wanted else ""
    head = f"{format_count(len(rows), 'comparison')}{cut}, {_spell_all([*labels])}"
    return "\n".join([*lines, f"{head}: {', '.join(counts) or 'none'}"])


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"      {line}" for line in lines]


def _describe_row(row: VersionRow) -> list[str]:
    verdicts = ", ".join(f"{label} {result.verdict}" for label, result in row.results.items())
    lines = [f"  {row.path} under {row.subject}: {verdicts}"]
    # The last result that fails, else the last that is no verdict.
    notable = [result for result in row.results.values() if result.verdict is Verdict.SKIPPED]
    notable += [result for result in row.results.values() if result.verdict.is_finding]
    if notable and (message := describe(notable[-1])):
        lines += _indent([message if len(message) < _LONGEST else f"{message[:_LONGEST]}..."])
    return lines


def spell_label(label: str) -> str:
    """A label of `start_versions` in words: with the name of torch if it names no package."""
    return f"torch {label}" if label[:1].isdigit() else label


def _spell_all(labels: Sequence[str]) -> str:
    """Labels in words, each package named once if each label is one version."""
    pairs = [split_version(label) for label in labels]
    known = {TORCH, *(package.name for compiler in COMPILERS.values() for package in compiler.packages)}
    is_plain = {package for package, _ in pairs} <= known
    return spell_versions(labels) if is_plain else spell_label(", ".join(labels))


def public_version(torch: str) -> str:
    """A torch version without its build: 2.13.0 for 2.13.0+cpu."""
    try:
        return Version(torch).public
    except InvalidVersion:
        return torch
