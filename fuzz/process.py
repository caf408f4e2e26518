"""Processes seen from outside: the memory they hold, how and where they ended; and one that ends with its parent.

    python -m fuzz.process PARENT_PID MODULE ARGUMENT...

runs a module as a process that ends when the one that started it does, kill -9 included: a worker in the middle of a
long compile would not see the end of its input. Runs under the worker's interpreter.
"""

import ctypes
import functools
import os
import re
import runpy
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from fuzz.protocol.failures import Process, ProcessLost

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_TAIL_BYTES = 16384
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+ in (?P<function>.+)')


@functools.lru_cache(maxsize=1)
def _read_sessions(_second: int) -> dict[int, float]:
    """MiB resident by session. Reading /proc takes 2 ms, and the thread of each worker asks several times a second."""
    sessions: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended.
            text = stat.read_bytes()
            # The name is in parentheses and may hold anything, spaces and parentheses included.
            fields = text[text.rfind(b")") + 2 :].split()
            session = int(fields[3])
            sessions[session] = sessions.get(session, 0.0) + int(fields[21]) * _PAGE_MIB
    return sessions


def session_rss_mib(session: int) -> float:
    """MiB resident in all processes of a session, at most a second ago; 0.0 where there is none."""
    return _read_sessions(int(time.monotonic())).get(session, 0.0)


def explain_exit(code: int, log_lines: list[str]) -> ProcessLost:
    """The failure that an exit code of `subprocess` and the process's log amount to."""
    place = find_place(log_lines)
    last_words = "" if place else find_last_words(log_lines)
    if code >= 0:
        return ProcessLost(Process.EXIT, str(code), place, last_words)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return ProcessLost(Process.SIGNAL, name, place, last_words)


def read_tail(log: Path, start: int) -> list[str]:
    """The last lines of the log that were written after byte `start`."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def find_last_words(lines: list[str]) -> str:
    """The last line that is not empty."""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def find_place(lines: list[str]) -> str:
    """`FUNCTION (FILE)` of the innermost frame in faulthandler's last dump; "" without one."""
    dumps = [i for i, line in enumerate(lines) if line.startswith("Current thread")]
    if not dumps or dumps[-1] + 1 >= len(lines):
        return ""
    frame = _FRAME.match(lines[dumps[-1] + 1])
    if frame is None:
        return ""
    parts = Path(frame["file"]).parts
    # Inductor names its modules after their hash.
    generated = re.fullmatch(r"c[a-z2-7]{51}\.py", parts[-1])
    return f"{frame['function']} ({'generated code' if generated else '/'.join(parts[-2:])})"


def main() -> None:
    """Tie this process, and what it forks, to its parent; then become the module."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    # The signal comes when the thread that started us ends; such threads outlive their workers.
    tie = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
    tie()
    if os.getppid() != parent:
        sys.exit(1)
    os.register_at_fork(after_in_child=tie)
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
