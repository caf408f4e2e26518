"""How and where a worker ended: from its exit code, and what it and faulthandler wrote to its log."""

import re
import signal
from pathlib import Path

_TAIL_BYTES = 16384
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+ in (?P<function>.+)')


def how(code: int) -> str:
    """An exit code of `subprocess` in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died by {signal.Signals(-code).name}"
    except ValueError:
        return f"died by signal {-code}"


def tail(log: Path | None, start: int) -> list[str]:
    """The last lines of the log that were written after byte `start`."""
    if log is None or not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def last_words(lines: list[str]) -> str:
    """The last line that says something; where faulthandler wrote, the place it names."""
    place = where(lines)
    if place:
        return place
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1][:200] if spoken else ""


def where(lines: list[str]) -> str:
    """`in FUNCTION (FILE)`: the innermost frame of faulthandler's dump; empty without one."""
    begins = [i for i, line in enumerate(lines) if line.startswith("Current thread")]
    if not begins or begins[-1] + 1 >= len(lines):
        return ""
    frame = _FRAME.match(lines[begins[-1] + 1])
    if frame is None:
        return ""
    parts = Path(frame["file"]).parts
    # Inductor names its modules after their hash.
    generated = re.fullmatch(r"c[a-z2-7]{51}\.py", parts[-1])
    return f"in {frame['function']} ({'generated code' if generated else '/'.join(parts[-2:])})"
