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
from fuzz.versions.interpreters import Task
from fuzz.versions.verdicts import Row, VersionResult
from generators.errors import UserError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """A version's results by what was asked."""

    torch: str
    results: Mapping[str, VersionResult]

    def result(self, task: Task) -> VersionResult:
        """What the version gave."""
        missing = VersionResult(Verdict.SKIPPED, "the baseline lacks it")
        return self.results.get(_key(task.case.id, task.subject, task.device), missing)


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
        return Baseline(str(data["torch"]), {key: decode_result(value) for key, value in data["cells"].items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"--baseline {path}: broken: {type(error).__name__}: {error}") from error


def text(torch: str, rows: Sequence[Row]) -> str:
    """A file that holds the last version's results."""
    results = {
        _key(row.case, row.subject, row.device): encode_result(row.results[-1])
        for row in rows
        if row.results[-1].is_judged
    }
    return json.dumps({"format": FORMAT, "torch": torch, "cells": results}, indent=1) + "\n"


def encode_result(result: VersionResult) -> dict[str, Any]:
    """A result as JSON-ready data; what JSON has no number for (inf, nan) is text."""
    numbers = {name: value if math.isfinite(value) else str(value) for name, value in result.numbers.items()}
    data = {"verdict": result.verdict.value, "message": result.detail, "numbers": numbers, "fired": list(result.fired)}
    return {key: value for key, value in data.items() if value}


def decode_result(data: Mapping[str, Any]) -> VersionResult:
    """A result from its JSON form. Raises what `dict`, `float` and `Verdict` raise."""
    numbers = {str(key): float(value) for key, value in data.get("numbers", {}).items()}
    return VersionResult(
        Verdict(data["verdict"]), str(data.get("message", "")), numbers, tuple(map(str, data.get("fired", ())))
    )


def _key(case: str, subject: str, device: str) -> str:
    return f"{case} {subject} {device}"
