"""Says on stderr what a report waits for: an experiment, a script, and for how long."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz.ask.evaluator import Evaluator
from triage.script_runs import ScriptRuns

_SECONDS = 15.0
"""Between two lines."""


@contextmanager
def tell_progress(evaluator: Evaluator, scripts: ScriptRuns) -> Iterator[None]:
    """Within it a line appears every few seconds."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(_SECONDS):
            sys.stderr.write(f"{describe_progress(evaluator, scripts, time.monotonic() - began)}\n")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def describe_progress(evaluator: Evaluator, scripts: ScriptRuns, seconds: float) -> str:
    """The work of the worker and of the scripts after these seconds of the report, in a line."""
    process = evaluator.process
    stage = f"{process.stage} for {time.monotonic() - process.stage_began:.0f} s" if process.stage else ""
    running = f"running {scripts.task}" if scripts.task else ""
    checks = f"{process.checks} checks by this worker" if process.checks else ""
    return f"  after {seconds:.0f} s: {', '.join(filter(None, [stage, running, checks]))}"
