"""A comparison as text for people and as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.bug_identity import attention_patterns
from fuzz.durations import format_count
from fuzz.versions.verdicts import Change, Row, encode_result, group_by_change

FORMAT = 1
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """`versions`: labels, first to last; `cut`: of how many cases, if the comparison was interrupted."""

    versions: tuple[str, ...]
    rows: tuple[Row, ...]
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
        "rows": [_row_data(row, comparison.versions) for row in comparison.rows],
    }
    return json.dumps(whole, indent=1) + "\n"


def describe_row(row: Row, versions: Sequence[str]) -> list[str]:
    """A row in lines, besides its verdicts: since when it fails, by how much, and the failure."""
    change, turn = row.change, row.find_turn()
    said = []
    if turn is not None and change in (Change.REGRESSED, Change.FIXED, Change.INTERNAL):
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
