"""Processes that end with the process that started them."""

import ctypes
import functools
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """End this process, and any process that it forks, when the parent ends, even by SIGKILL.

    A worker in a long compilation would not notice that its input ended.
    """
    # The signal comes when the thread that started this process ends; such threads outlive their workers.
    tie = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
    tie()
    if os.getppid() != parent:
        sys.exit(1)
    os.register_at_fork(after_in_child=tie)
