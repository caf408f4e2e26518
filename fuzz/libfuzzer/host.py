"""A worker that libFuzzer drives: it sends the case it draws, waits for the request, and answers as any worker.

    python -m fuzz.libfuzzer.host --corpus DIR --seed N [options of fuzz.check.worker]

`DIR/corpus` is libFuzzer's corpus, with which the next process continues. The parent limits time and memory and ends
the process.
"""

import argparse
import functools
import gc
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn, ParamSpec, TypeVar

from fuzz.check import worker
from fuzz.protocol import Drawn, Fault

P = ParamSpec("P")
R = TypeVar("R")

OLDEST_PYTHON = (3, 11)
_NEVER = 10**8
"""Seconds. A limit of libFuzzer's would end the process while it waits for a request."""


def main() -> int:
    """Serve until run_or_exit to exit. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.libfuzzer.host", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options, rest = parser.parse_known_args()

    return worker.main(rest, before=_instrument, serve=functools.partial(_fuzz, options.corpus, options.seed))


def _instrument() -> None:
    needs, python = "--engine atheris needs", sys.executable
    if sys.version_info < OLDEST_PYTHON:
        raise worker.WorkerUnavailable(f"{needs} Python >= 3.11 and {python} is {sys.version.split()[0]}")
    for module, package in (("atheris", "atheris"), ("yaml", "pyyaml")):
        if importlib.util.find_spec(module) is None:
            raise worker.WorkerUnavailable(f"{needs} the package {package}: {python} -m pip install {package}")
    if importlib.util.find_spec("torch") is not None:
        from fuzz.libfuzzer.instrument import instrument_imports

        instrument_imports()


def _fuzz(directory: Path, seed: int, requests: BinaryIO, wire: BinaryIO, answer: worker.Answer) -> int:
    import atheris

    from fuzz.libfuzzer import inputs

    corpus = directory / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    judged: set[str] = set()

    def judge(data: bytes) -> None:
        case = inputs.decode(data)
        if case.id in judged:
            return
        judged.add(case.id)
        worker.send(wire, Drawn(inputs.encode(case).decode()))
        check = worker.read_check(requests)
        if check is None:
            _end(0)
        worker.send(wire, answer(check))

    flags = [
        f"-artifact_prefix={directory}/",
        f"-seed={seed}",
        "-max_len=65536",
        "-len_control=0",
        "-reload=0",
        f"-timeout={_NEVER}",
        f"-report_slow_units={_NEVER}",
        "-rss_limit_mb=0",
        # Signals are left to faulthandler, which dumps the stack.
        *(f"-handle_{name}=0" for name in ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "usr1", "usr2", "xfsz")),
    ]
    atheris.Setup(
        ["libfuzzer", *flags, str(corpus)],
        _exit_on_fault(judge, wire),
        custom_mutator=_exit_on_fault(inputs.mutate_input, wire),
    )
    gc.collect()
    gc.freeze()
    atheris.Fuzz()
    return 0


def _exit_on_fault(function: Callable[P, R], wire: BinaryIO) -> Callable[P, R]:
    """`function`, which ends the process on an exception, as workers do. libFuzzer would count a crash and continue."""

    @functools.wraps(function)
    def run_or_exit(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException:
            worker.send(wire, Fault(traceback.format_exc()))
            _end(worker.FAULT_CODE)

    return run_or_exit


def _end(code: int) -> NoReturn:
    """End without libFuzzer's exit handler, which counts every exit as a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
