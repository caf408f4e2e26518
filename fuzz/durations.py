"""Durations and counts in words."""

import re

from generators.errors import UserError

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_duration(text: str, option: str, expected: str = "60s, 10m or 1h30m") -> float:
    """Seconds in `text`. Raises `UserError`, which names `option` and `expected`, unless it is a duration of at most a
    year."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        unit = ": the unit is missing" if re.fullmatch(r"[\d.]+", text.strip()) else ""
        raise UserError(f"invalid {option} {text!r}{unit}; expected {expected}")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= 8760 * 3600:
        raise UserError(f"{option} must be longer than 0 s and at most 8760h, got {text!r}")
    return total


def format_duration(seconds: float) -> str:
    """Seconds the way a person writes them: `45s`, `3m20s`, `1h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g}s" if seconds < 10 and seconds != whole else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    minutes = whole % 3600 // 60
    return f"{whole // 3600}h{minutes:02d}m" if minutes else f"{whole // 3600}h"


def format_count(number: int, noun: str) -> str:
    """A number with its noun: `1 finding`, `2 findings`."""
    return f"{number} {noun}{'s' * (number != 1)}"
