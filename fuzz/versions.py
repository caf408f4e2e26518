"""Cases replayed under several torch versions: which regressed, were fixed, or fail in all."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.entry import Entry
from fuzz.durations import format_count
from fuzz.evaluator import Evaluator, public_version
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import NotTaken, Raised, Refusal, Word
from fuzz.protocol.render import describe
from generators.errors import UserError

_LONGEST = 300


class Change(Word):
    """What became of a case from the first version to the last, in the order of the table."""

    REGRESSED = "regressed", "passes in an earlier version and fails in the last one"
    FIXED = "fixed", "fails in an earlier version and passes in the last one"
    FAILS = "fails in all", "a finding in every version that could judge it"
    UNSTEADY = "not reproducible", "a fresh worker contradicts the first one, so versions are not compared"
    UNJUDGED = "not compared", "fewer than two versions could judge it"
    SAME = "no change", "passes in all"


@dataclass(frozen=True, slots=True)
class Version:
    """A torch to compare, and its workers."""

    label: str  # for people
    torch: str
    evaluator: Evaluator


@dataclass(frozen=True, slots=True)
class Row:
    """A case under one subject in all versions, first to last."""

    path: Path
    subject: str
    results: tuple[SubjectResult, ...]
    is_reproduced: bool = True  # by fresh workers, where versions differ

    @property
    def fails(self) -> dict[int, bool]:
        """By its place, whether a version that could judge the case accuses somebody."""
        judged = enumerate(self.results)
        return {place: one.verdict.is_finding for place, one in judged if one.verdict is not Verdict.SKIPPED}

    @property
    def change(self) -> Change:
        """What became of the case."""
        fails = [*self.fails.values()]
        if len(fails) < 2:
            return Change.UNJUDGED
        if not self.is_reproduced:
            return Change.UNSTEADY
        if all(fails) or not any(fails):
            return Change.FAILS if all(fails) else Change.SAME
        return Change.REGRESSED if fails[-1] else Change.FIXED


def start_versions(evaluators: Sequence[Evaluator], subjects: Collection[str]) -> list[Version]:
    """Start all workers before any work. Raises `UserError` for an interpreter that can't be used, and for a subject
    that none of them has."""
    hellos = [evaluator.hello for evaluator in evaluators]
    known = {subject for hello in hellos for subject in hello.subjects}
    if known and (unknown := {*subjects} - known):
        raise UserError(f"unknown subject {min(unknown)!r}; there are {', '.join(sorted(known))}")
    labels = torches = [public_version(hello.torch) for hello in hellos]
    if len(set(torches)) < len(torches):
        places = zip(torches, evaluators, strict=True)
        labels = [f"{number}: {torch} ({one.config.python})" for number, (torch, one) in enumerate(places, 1)]
    return [Version(*version) for version in zip(labels, torches, evaluators, strict=True)]


def compare_versions(path: Path, entry: Entry, subject: str, device: str, versions: Sequence[Version]) -> Row:
    """Replay a case under every version. A regression or a fix is replayed by fresh workers."""

    def skip(why: str) -> SubjectResult:
        return SubjectResult(subject, Verdict.SKIPPED, failure=NotTaken(Refusal.NO_VERDICT, why))

    def replay(version: Version, *, fresh: bool = False) -> SubjectResult:
        try:
            evaluator = version.evaluator.on(device)
            if subject not in evaluator.hello.subjects:
                return skip(f"torch {version.torch} has no {subject}")
            return evaluator.evaluate_or_raise(entry.case, subject, fresh=fresh)
        except UserError as error:
            return skip(str(error))

    row = Row(path, subject, tuple(map(replay, versions)))
    if row.change not in (Change.REGRESSED, Change.FIXED):
        return row
    # Without the last version, or the latest that differs from it, there is no change.
    fails, last = row.fails, max(row.fails)
    places = (last, max(place for place in fails if fails[place] is not fails[last]))
    agree = (replay(versions[place], fresh=True).verdict.is_finding is fails[place] for place in places)
    return replace(row, is_reproduced=all(agree))


def spell_verdict(result: SubjectResult) -> str:
    """A verdict as case files record it: with the exception if one was raised."""
    return f"{result.verdict} {result.failure.error}" if isinstance(result.failure, Raised) else str(result.verdict)


def render_table(rows: Sequence[Row], labels: Sequence[str], n_wanted: int) -> str:
    """The table for a terminal. Cases without change are only counted. `n_wanted`: rows of a complete table."""
    lines, counts = [], []
    for change in Change:
        found = [row for row in rows if row.change is change]
        counts += [f"{len(found)} {change}"] if found else []
        if found and change is not Change.SAME:
            lines.append(f"{change} ({len(found)}): {change.explanation}")
            lines += [line for row in found for line in _describe_row(row, labels)]
            lines.append("")
    cut = f" of {n_wanted}, then interrupted" if len(rows) < n_wanted else ""
    head = f"{format_count(len(rows), 'comparison')}{cut}, torch {', '.join(labels)}"
    return "\n".join([*lines, f"{head}: {', '.join(counts) or 'none'}"])


def _describe_row(row: Row, labels: Sequence[str]) -> list[str]:
    verdicts = ", ".join(f"{label} {one.verdict}" for label, one in zip(labels, row.results, strict=True))
    lines = [f"  {row.path} under {row.subject}: {verdicts}"]
    # The last result that fails, else the last that is no verdict.
    notable = [one for one in row.results if one.verdict is Verdict.SKIPPED]
    notable += [one for one in row.results if one.verdict.is_finding]
    if notable and (message := describe(notable[-1])):
        lines.append(f"      {message if len(message) < _LONGEST else f'{message[:_LONGEST]}...'}")
    return lines
