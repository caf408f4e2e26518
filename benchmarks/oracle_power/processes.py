"""Calls spread over processes, each with the settings of a worker."""

import functools
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from fuzz.check.torch_api import settings
from fuzz.check.worker import ENVIRONMENT, INTERPRETER_ENVIRONMENT

CHUNKS_PER_PROCESS = {"cpu": 100, "cuda": 4}
"""On a GPU an illegal access leaves a process that can do nothing more."""
LONGEST = 900
"""Seconds to wait for the next result."""


def run_parts(
    device: str, workers: int, lost: list[str], call: Callable[..., Any], arguments: list[tuple[Any, ...]]
) -> Iterator[Any]:
    """The results of `call`, as they come, from `workers` processes. `lost` gets a line for what does not come."""
    # Read by the processes when they import torch, and with it Triton.
    os.environ.update({**ENVIRONMENT, **(INTERPRETER_ENVIRONMENT if device == "cpu" else {})})
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _started, maxtasksperchild=CHUNKS_PER_PROCESS[device]) as pool:
        results = pool.imap_unordered(functools.partial(_call, call), arguments)
        for number in range(len(arguments)):
            try:
                part = results.next(timeout=LONGEST)
            except (KeyboardInterrupt, multiprocessing.TimeoutError) as error:
                # Without an interruption a process died, and its part with it.
                why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"no result for {LONGEST} s"
                lost.append(f"{len(arguments) - number} of {len(arguments)} parts: {why}")
                return
            except Exception as error:  # noqa: BLE001 whatever it is, the rest is worth having
                traceback.print_exc()
                lost.append(f"one of {len(arguments)} parts: {type(error).__name__}: {error}")
            else:
                yield part


def _call(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return call(*arguments)


def _started() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings.configure_torch()
    gc.collect()
    gc.freeze()
