"""Runs a module as a process that ends when the one that started it does, kill -9 included.

    python -m fuzz.parent_watch PARENT_PID MODULE ARGUMENT...

A worker in the middle of a long compile would not see the end of its input. Runs under the worker's interpreter:
standard library only.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Tie this process to its parent, then become the module."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        # The signal comes when the thread that started us ends; such threads outlive their workers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
