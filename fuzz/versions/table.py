"""A comparison as text for a terminal, as Markdown and as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.campaign.symptom import attention_patterns
from fuzz.durations import format_count
from fuzz.versions.baseline import cell_data
from fuzz.versions.verdicts import Cell, Change, Row, of_change

FORMAT = 1
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is told: `versions`, first to last, by label; the rows so far; of how many cases, where it was interrupted."""

    versions: tuple[str, ...]
    rows: tuple[Row, ...]
    cut: int = 0

    def headline(self) -> str:
        """How many cases, which versions, what changed."""
        cut = f" of {self.cut}, then interrupted" if self.cut else ""
        counts = [f"{len(rows)} {change}" for change, rows in of_change(self.rows)]
        return f"{format_count(len(self.rows), 'comparison')}{cut}, torch {', '.join(self.versions)}: {', '.join(counts) or 'none'}"


def text(told: Comparison) -> str:
    """For a person at a terminal; cases without change are only counted."""
    lines = []
    for change, rows in of_change(told.rows):
        if change is Change.SAME:
            continue
        lines.append(f"{change} ({len(rows)}): {change.meaning}")
        table = [["  case", "subject", *told.versions], *(_cells(row, "  ") for row in rows)]
        widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
        head, *body = [
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        lines.append(head)
        for line, row in zip(body, rows, strict=True):
            lines += [line, *(f"      {word}" for word in words(row, told.versions))]
        lines.append("")
    return "\n".join([*lines, told.headline()])


def markdown(told: Comparison) -> str:
    """For a page."""
    lines = [f"{told.headline()}.", ""]
    for change, rows in of_change(told.rows):
        if change is Change.SAME:
            continue
        lines += [f"### {str(change).capitalize()} ({len(rows)})", "", f"{change.meaning.capitalize()}.", ""]
        lines.append("| " + " | ".join(["case", "subject", *told.versions, ""]) + " |")
        lines.append("|" + "---|" * (len(told.versions) + 3))
        for row in rows:
            said = "; ".join(_escaped(word) for word in words(row, told.versions))
            lines.append("| " + " | ".join([f"`{row.name}`", f"`{row.subject}`", *_cells(row)[2:], said]) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def data(told: Comparison) -> str:
    """For programs."""
    rows = [_row_data(row, told.versions) for row in told.rows]
    counts = {str(change): len(found) for change, found in of_change(told.rows)}
    whole = {
        "format": FORMAT,
        "versions": told.versions,
        "interrupted": bool(told.cut),
        "changes": counts,
        "rows": rows,
    }
    return json.dumps(whole, indent=1) + "\n"


def words(row: Row, versions: Sequence[str]) -> list[str]:
    """What is to be said about a row besides its verdicts: since when, by how much, and what the failure says."""
    change, turn = row.change, row.turn()
    said = []
    if turn is not None and change in (Change.REGRESSED, Change.FIXED, Change.INTERNAL):
        said.append(f"{'fails' if row.cells[turn].fails else 'passes'} since {versions[turn]}")
    if change is Change.GREW:
        said.append(_growth(row))
    if change is Change.REWRITTEN:
        said.append(_patterns_since(row, versions))
    told = row.telling()
    if told is not None and told.message:
        said.append(told.message if len(told.message) < _LONGEST else f"{told.message[:_LONGEST]}...")
    return said


def _growth(row: Row) -> str:
    judged = [cell for cell in row.cells if cell.is_judged]
    (error, ratio), (later, later_ratio) = [
        (cell.numbers["compiled_error"], cell.numbers["ratio"]) for cell in (judged[0], judged[-1])
    ]
    return (
        f"error against float64 {error:.2g}, then {later:.2g}: {_times(row.growth)};"
        f" {ratio:.2g} times what rounding explains, then {later_ratio:.2g}"
    )


def _patterns_since(row: Row, versions: Sequence[str]) -> str:
    """The patterns that fired, each time they changed."""
    said: list[str] = []
    before = ""
    for version, cell in zip(versions, row.cells, strict=True):
        now = _patterns(cell)
        if cell.is_judged and now != before:
            said.append(f"{'since ' if said else ''}{version}: {now}")
            before = now
    return "; ".join(said)


def _patterns(cell: Cell) -> str:
    return ", ".join(name for name in cell.fired if attention_patterns((name,))) or "none"


def _times(growth: float) -> str:
    return f"{growth:.3g} times as large" if math.isfinite(growth) else "it was exact before"


def _cells(row: Row, indent: str = "") -> list[str]:
    return [f"{indent}{row.name}", row.subject, *map(_verdict, row.cells)]


def _verdict(cell: Cell) -> str:
    return str(cell.verdict) if cell.steady else f"{cell.verdict}, not again"


def _escaped(said: str) -> str:
    return said.replace("|", "\\|").replace("<", "&lt;")


def _row_data(row: Row, versions: Sequence[str]) -> dict[str, Any]:
    turn = row.turn()
    return {
        "name": row.name,
        "case": row.case,
        "subject": row.subject,
        "device": row.device,
        "change": str(row.change),
        "since": versions[turn] if turn is not None else None,
        "growth": row.growth if math.isfinite(row.growth) else str(row.growth),
        "cells": {version: cell_data(cell) for version, cell in zip(versions, row.cells, strict=True)},
    }
