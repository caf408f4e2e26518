"""What a version gave, kept in a file for later comparisons: verdict and numbers of each case, as in

{"format": 1, "torch": "2.13.0", "cells": {"<case id> inductor cpu": {"verdict": "ok", "numbers": {"ratio": 0.3}}}}
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.protocol import Verdict
from fuzz.versions.interpreters import Question
from fuzz.versions.verdicts import Cell, Row
from generators.errors import UserError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """A version's cells by what was asked."""

    torch: str
    cells: Mapping[str, Cell]

    def cell(self, question: Question) -> Cell:
        """What the version gave."""
        missing = Cell(Verdict.SKIPPED, "the baseline lacks it")
        return self.cells.get(_key(question.case.id, question.subject, question.device), missing)


def load(path: Path) -> Baseline:
    """The baseline in a file. Raises `UserError` when it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--baseline {path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--baseline {path}: not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError(f"--baseline {path}: no baseline of format {FORMAT}; --save-baseline writes one")
    try:
        return Baseline(str(data["torch"]), {key: cell_from(value) for key, value in data["cells"].items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"--baseline {path}: broken: {type(error).__name__}: {error}") from error


def text(torch: str, rows: Sequence[Row]) -> str:
    """A file that holds the last version's cells."""
    cells = {
        _key(row.case, row.subject, row.device): cell_data(row.cells[-1]) for row in rows if row.cells[-1].is_judged
    }
    return json.dumps({"format": FORMAT, "torch": torch, "cells": cells}, indent=1) + "\n"


def cell_data(cell: Cell) -> dict[str, Any]:
    """A cell as JSON-ready data; what JSON has no number for (inf, nan) is text."""
    numbers = {name: value if math.isfinite(value) else str(value) for name, value in cell.numbers.items()}
    data = {"verdict": cell.verdict.value, "message": cell.message, "numbers": numbers, "fired": list(cell.fired)}
    return {key: value for key, value in data.items() if value}


def cell_from(data: Mapping[str, Any]) -> Cell:
    """A cell from its JSON form. Raises what `dict`, `float` and `Verdict` raise."""
    numbers = {str(key): float(value) for key, value in data.get("numbers", {}).items()}
    return Cell(Verdict(data["verdict"]), str(data.get("message", "")), numbers, tuple(map(str, data.get("fired", ()))))


def _key(case: str, subject: str, device: str) -> str:
    return f"{case} {subject} {device}"
