"""What several torch versions made of cases, what changed between them, and all of it as text and JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuzz.bug_identity import attention_patterns
from fuzz.durations import format_count
from fuzz.protocol import Verdict
from fuzz.protocol.codec import encode
from fuzz.protocol.failures import Word

GROWTH = 4.0
"""An error that is so many times the earlier one has grown. Below that is what another order of rounding does: over the
corpus in torch 2.11.0, 2.12.1, 2.13.0 and 2.15.0, errors of right programs whose attention was fused and of eager,
where it was not, differ by at most 3.1 times (279 results; 6 of them by more, where eager rounds to float16 and the
fused form does not). The same program under two versions: by at most 1.7 times (411 pairs)."""

ROUNDING = 1.0
"""An error of so many times what rounding explains, or fewer, is rounding, however it changed."""

SAME_SCALE = 0.01
"""Numbers are of one value of a case where its largest magnitudes are this close, relatively."""

_MEASURED = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.PRECISION_POLICY})


class Change(Word):
    """What became of a case from the first version to the last, in the order in which it is told."""

    REGRESSED = "regressed", "passes in an earlier version and fails in the last one"
    GREW = "error grew", "fails in none, but is further from float64 in the last version, beyond rounding"
    FIXED = "fixed", "fails in an earlier version and passes in the last one"
    REWRITTEN = "other attention rewrites", "passes in all, but other attention patterns of the compiler match, or none"
    FAILS = "fails in all", "a finding in every version that could judge it"
    UNSTEADY = "not reproducible", "a fresh worker contradicts the first one, so versions are not compared"
    UNJUDGED = "not compared", "fewer than two versions could judge it"
    SAME = "no change", "passes in all, with errors that did not grow beyond rounding"


@dataclass(frozen=True, slots=True)
class VersionResult:
    """What one version made of a case under one subject.

    message: what is wrong, for people; reproduced: no second run in a fresh worker disagreed; fault: attnfuzz failed.
    """

    verdict: Verdict
    message: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    fired: tuple[str, ...] = ()
    reproduced: bool = True
    fault: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether the subject ran and eager took the case."""
        return self.verdict not in (Verdict.REJECTED, Verdict.SKIPPED)

    @property
    def is_measured(self) -> bool:
        """Whether its error against float64 says how exact a right result is."""
        names = ("ratio", "compiled_error", "scale")
        return self.verdict in _MEASURED and all(math.isfinite(self.numbers.get(name, math.nan)) for name in names)

    @property
    def fails(self) -> bool:
        """Whether this is a finding."""
        return self.verdict.is_finding


@dataclass(frozen=True, slots=True)
class Row:
    """A case under one subject in all versions, first to last. `name`: its file."""

    name: str
    case: str
    subject: str
    device: str
    results: tuple[VersionResult, ...]

    @property
    def judged(self) -> list[VersionResult]:
        """The results of the versions that could judge it."""
        return [result for result in self.results if result.is_judged]

    @property
    def change(self) -> Change:
        """What became of the case."""
        judged = self.judged
        if len(judged) < 2:
            return Change.UNJUDGED
        if not all(result.reproduced for result in judged):
            return Change.UNSTEADY
        if all(result.fails for result in judged):
            return Change.FAILS
        if judged[-1].fails:
            return Change.REGRESSED
        if any(result.fails for result in judged):
            return Change.FIXED
        if self.growth >= GROWTH:
            return Change.GREW
        patterns = [attention_patterns(result.fired) for result in judged]
        return Change.REWRITTEN if patterns[0] != patterns[-1] else Change.SAME

    @property
    def growth(self) -> float:
        """How many times the first version's error against float64 the last one's is.

        0 where it is no more than rounding explains, by the measure of either version: one whose eager lost precision
        explains more. 0 too where one of them is a finding, or was not measured.
        """
        judged = self.judged
        if len(judged) < 2 or not all(result.is_measured for result in (judged[0], judged[-1])):
            return 0.0
        old, new = judged[0].numbers, judged[-1].numbers
        # Where the scales differ, another output is the worst one now.
        is_one = math.isclose(old["scale"], new["scale"], rel_tol=SAME_SCALE)
        before, after = (numbers["compiled_error" if is_one else "ratio"] for numbers in (old, new))
        times = after / before if before else math.inf if after else 0.0
        explained = max(new["ratio"], old["ratio"] * times if old["ratio"] else 0.0)
        return times if explained > ROUNDING else 0.0

    def find_turn(self) -> int | None:
        """The version, by its place, since which a case that regressed fails, or one that was fixed passes."""
        judged = [(place, result.fails) for place, result in enumerate(self.results) if result.is_judged]
        last = judged[-1][1] if judged else False
        others = [place for place, fails in judged if fails is not last]
        return next((place for place, _ in judged if others and place > others[-1]), None)

    def find_most_informative(self) -> VersionResult | None:
        """The result to describe: the last that fails, else the last that could not be judged."""
        skipped = [result for result in self.results if not result.is_judged]
        return [None, *skipped, *(result for result in self.results if result.fails)][-1]


def group_by_change(rows: Sequence[Row]) -> Iterator[tuple[Change, list[Row]]]:
    """The changes that there are, in their order, each with its rows."""
    for change in Change:
        found = [row for row in rows if row.change is change]
        if found:
            yield change, found


FORMAT = 1
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """`versions`: labels, first to last; `cut`: of how many cases, if the comparison was interrupted."""

    versions: tuple[str, ...]
    rows: Sequence[Row]
    cut: int = 0


def render_text(comparison: Comparison) -> str:
    """The comparison for a terminal. Cases without change are only counted."""
    lines = []
    for change, rows in group_by_change(comparison.rows):
        if change is Change.SAME:
            continue
        lines.append(f"{change} ({len(rows)}): {change.explanation}")
        table = [
            ["  case", "subject", *comparison.versions],
            *([f"  {row.name}", row.subject, *_cells(row)] for row in rows),
        ]
        widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
        head, *body = [
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        lines.append(head)
        for line, row in zip(body, rows, strict=True):
            lines += [line, *(f"      {word}" for word in describe_row(row, comparison.versions))]
        lines.append("")
    cut = f" of {comparison.cut}, then interrupted" if comparison.cut else ""
    counts = [f"{len(rows)} {change}" for change, rows in group_by_change(comparison.rows)]
    head = f"{format_count(len(comparison.rows), 'comparison')}{cut}, torch {', '.join(comparison.versions)}"
    return "\n".join([*lines, f"{head}: {', '.join(counts) or 'none'}"])


def render_json(comparison: Comparison) -> str:
    """The comparison as JSON."""
    whole = {
        "format": FORMAT,
        "versions": comparison.versions,
        "interrupted": bool(comparison.cut),
        "changes": {str(change): len(found) for change, found in group_by_change(comparison.rows)},
        "rows": [_encode_row(row, comparison.versions) for row in comparison.rows],
    }
    return json.dumps(whole, indent=1) + "\n"


def _encode_row(row: Row, versions: Sequence[str]) -> dict[str, Any]:
    turn = row.find_turn()
    results = (replace(result, reproduced=True, fault=False) for result in row.results)
    return {
        **{name: getattr(row, name) for name in ("name", "case", "subject", "device")},
        "change": str(row.change),
        "since": versions[turn] if turn is not None else None,
        "growth": encode(row.growth),
        "cells": {version: encode(result) for version, result in zip(versions, results, strict=True)},
    }


def describe_row(row: Row, versions: Sequence[str]) -> list[str]:
    """A row in lines, besides its verdicts: since when it fails, by how much, and the failure."""
    change, turn = row.change, row.find_turn()
    said = []
    if turn is not None and change in (Change.REGRESSED, Change.FIXED):
        said.append(f"{'fails' if row.results[turn].fails else 'passes'} since {versions[turn]}")
    if change is Change.GREW:
        said.append(_growth(row))
    if change is Change.REWRITTEN:
        said.append(_patterns_since(row, versions))
    shown = row.find_most_informative()
    if shown is not None and shown.message:
        said.append(shown.message if len(shown.message) < _LONGEST else f"{shown.message[:_LONGEST]}...")
    return said


def _growth(row: Row) -> str:
    old, new = row.judged[0].numbers, row.judged[-1].numbers
    times = f"{row.growth:.3g} times as large" if math.isfinite(row.growth) else "it was exact before"
    return (
        f"error against float64 {old['compiled_error']:.2g}, then {new['compiled_error']:.2g}: {times};"
        f" {old['ratio']:.2g} times what rounding explains, then {new['ratio']:.2g}"
    )


def _patterns_since(row: Row, versions: Sequence[str]) -> str:
    said: list[str] = []
    before = ""
    for version, result in zip(versions, row.results, strict=True):
        now = ", ".join(name for name in result.fired if attention_patterns((name,))) or "none"
        if result.is_judged and now != before:
            said.append(f"{'since ' if said else ''}{version}: {now}")
            before = now
    return "; ".join(said)


def _cells(row: Row) -> list[str]:
    return [str(result.verdict) if result.reproduced else f"{result.verdict}, not reproduced" for result in row.results]
