"""How a process ended, from its exit code and its log."""

import re
import signal
from pathlib import Path

from fuzz.protocol.failures import Process, ProcessLost

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+ in (?P<function>.+)')


_LONGEST = 400
"""Characters of a whole log: a shim that misses its Python prints up to 300."""


def explain_exit(code: int, log_lines: list[str], *, is_start: bool = False) -> ProcessLost:
    """The failure for an exit code of `subprocess` and the last lines of the log.

    is_start: the process never answered, so it may be no Python, and all that it printed counts
    """
    place = find_place(log_lines)
    last_words = "" if place else _find_all_words(log_lines) if is_start else find_last_words(log_lines)
    if code >= 0:
        return ProcessLost(Process.EXIT, str(code), place, last_words)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return ProcessLost(Process.SIGNAL, name, place, last_words)


def find_last_words(lines: list[str]) -> str:
    """The last line that is not empty and no part of faulthandler's dump."""
    said = lines[: _find_dump(lines) + 1] or lines
    return next((line.strip()[:200] for line in reversed(said) if line.strip()), "")


def _find_all_words(lines: list[str]) -> str:
    """All lines in one, up to `_LONGEST` characters; the last line of a traceback."""
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return find_last_words(lines)
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} ..."


def find_place(lines: list[str]) -> str:
    """`FUNCTION (FILE)` of the innermost frame in faulthandler's last dump; "" without a dump.

    A thread that torch started has no frames of Python. The frame is then the main thread's, which a dump lists last.
    """
    dump = lines[_find_dump(lines) + 1 :]
    threads = [i for i, line in enumerate(dump) if line.startswith(("Current thread", "Thread 0x"))]
    threads.sort(key=lambda i: (dump[i].startswith("Current"), i), reverse=True)
    frame = next(filter(None, (_FRAME.match(line) for i in threads for line in dump[i + 1 : i + 2])), None)
    if frame is None:
        return ""
    parts = Path(frame["file"]).parts
    # Inductor names its modules after their hash.
    generated = re.fullmatch(r"c[a-z2-7]{51}\.py", parts[-1])
    return f"{frame['function']} ({'generated code' if generated else '/'.join(parts[-2:])})"


def _find_dump(lines: list[str]) -> int:
    """Where faulthandler's last dump of a signal begins; -1 without one."""
    return max((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), default=-1)
