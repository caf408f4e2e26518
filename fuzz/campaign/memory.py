"""Resident memory of a worker and everything it started, read from /proc."""

import os
from pathlib import Path

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def session_rss_mib(session: int) -> float:
    """MiB resident in all processes of a session; 0.0 where there is no /proc."""
    total = 0.0
    try:
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return 0.0
    for process in processes:
        total += _rss_mib(process, session)
    return total


def _rss_mib(process: Path, session: int) -> float:
    try:
        text = (process / "stat").read_bytes()
    except OSError:
        return 0.0  # It ended meanwhile.
    # The name is in parentheses and may hold anything, spaces and parentheses included.
    fields = text[text.rfind(b")") + 2 :].split()
    return int(fields[21]) * _PAGE_MIB if int(fields[3]) == session else 0.0
