"""A comparison as text for a terminal, as Markdown and as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.bug_identity import attention_patterns
from fuzz.durations import format_count
from fuzz.versions.verdicts import Change, Row, VersionResult, encode_result, group_by_change

FORMAT = 1
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """`versions`: labels, first to last; `cut`: of how many cases, if the comparison was interrupted."""

    versions: tuple[str, ...]
    rows: tuple[Row, ...]
    cut: int = 0

    def headline(self) -> str:
        """How many cases, which versions, what changed."""
        cut = f" of {self.cut}, then interrupted" if self.cut else ""
        counts = [f"{len(rows)} {change}" for change, rows in group_by_change(self.rows)]
        comparisons = format_count(len(self.rows), "comparison")
        return f"{comparisons}{cut}, torch {', '.join(self.versions)}: {', '.join(counts) or 'none'}"


def text(comparison: Comparison) -> str:
    """For a person at a terminal; cases without change are only counted."""
    lines = []
    for change, rows in group_by_change(comparison.rows):
        if change is Change.SAME:
            continue
        lines.append(f"{change} ({len(rows)}): {change.meaning}")
        table = [["  case", "subject", *comparison.versions], *(_cells(row, "  ") for row in rows)]
        widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
        head, *body = [
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        lines.append(head)
        for line, row in zip(body, rows, strict=True):
            lines += [line, *(f"      {word}" for word in words(row, comparison.versions))]
        lines.append("")
    return "\n".join([*lines, comparison.headline()])


def markdown(comparison: Comparison) -> str:
    """For a page."""
    lines = [f"{comparison.headline()}.", ""]
    for change, rows in group_by_change(comparison.rows):
        if change is Change.SAME:
            continue
        lines += [f"### {str(change).capitalize()} ({len(rows)})", "", f"{change.meaning.capitalize()}.", ""]
        lines.append("| " + " | ".join(["case", "subject", *comparison.versions, ""]) + " |")
        lines.append("|" + "---|" * (len(comparison.versions) + 3))
        for row in rows:
            said = "; ".join(_escape(word) for word in words(row, comparison.versions))
            lines.append("| " + " | ".join([f"`{row.name}`", f"`{row.subject}`", *_cells(row)[2:], said]) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def data(comparison: Comparison) -> str:
    """For programs."""
    rows = [_row_data(row, comparison.versions) for row in comparison.rows]
    counts = {str(change): len(found) for change, found in group_by_change(comparison.rows)}
    whole = {
        "format": FORMAT,
        "versions": comparison.versions,
        "interrupted": bool(comparison.cut),
        "changes": counts,
        "rows": rows,
    }
    return json.dumps(whole, indent=1) + "\n"


def words(row: Row, versions: Sequence[str]) -> list[str]:
    """What is to be said about a row besides its verdicts: since when, by how much, and what the failure says."""
    change, turn = row.change, row.find_turn()
    said = []
    if turn is not None and change in (Change.REGRESSED, Change.FIXED, Change.INTERNAL):
        said.append(f"{'fails' if row.results[turn].fails else 'passes'} since {versions[turn]}")
    if change is Change.GREW:
        said.append(_growth(row))
    if change is Change.REWRITTEN:
        said.append(_patterns_since(row, versions))
    telling = row.find_most_telling()
    if telling is not None and telling.detail:
        said.append(telling.detail if len(telling.detail) < _LONGEST else f"{telling.detail[:_LONGEST]}...")
    return said


def _growth(row: Row) -> str:
    judged = [result for result in row.results if result.is_judged]
    (error, ratio), (later, later_ratio) = [
        (result.numbers["compiled_error"], result.numbers["ratio"]) for result in (judged[0], judged[-1])
    ]
    return (
        f"error against float64 {error:.2g}, then {later:.2g}: {_times(row.growth)};"
        f" {ratio:.2g} times what rounding explains, then {later_ratio:.2g}"
    )


def _patterns_since(row: Row, versions: Sequence[str]) -> str:
    """The patterns that fired, each time they changed."""
    said: list[str] = []
    before = ""
    for version, result in zip(versions, row.results, strict=True):
        now = _patterns(result)
        if result.is_judged and now != before:
            said.append(f"{'since ' if said else ''}{version}: {now}")
            before = now
    return "; ".join(said)


def _patterns(result: VersionResult) -> str:
    return ", ".join(name for name in result.fired if attention_patterns((name,))) or "none"


def _times(growth: float) -> str:
    return f"{growth:.3g} times as large" if math.isfinite(growth) else "it was exact before"


def _cells(row: Row, indent: str = "") -> list[str]:
    return [f"{indent}{row.name}", row.subject, *map(_verdict, row.results)]


def _verdict(result: VersionResult) -> str:
    return str(result.verdict) if result.steady else f"{result.verdict}, not again"


def _escape(said: str) -> str:
    return said.replace("|", "\\|").replace("<", "&lt;")


def _row_data(row: Row, versions: Sequence[str]) -> dict[str, Any]:
    turn = row.find_turn()
    return {
        "name": row.name,
        "case": row.case,
        "subject": row.subject,
        "device": row.device,
        "change": str(row.change),
        "since": versions[turn] if turn is not None else None,
        "growth": row.growth if math.isfinite(row.growth) else str(row.growth),
        "cells": {version: encode_result(result) for version, result in zip(versions, row.results, strict=True)},
    }
