"""A worker that libFuzzer drives: it sends a case that libFuzzer draws, waits for the check, and sends its result.

    python -m fuzz.libfuzzer --corpus DIR [options of fuzz.check.worker]

The next process continues with libFuzzer's corpus in `DIR/corpus`. The parent limits time and memory and ends
the process.
"""

import argparse
import functools
import gc
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, NoReturn

from fuzz.check import worker
from fuzz.protocol import Drawn, Fault

OLDEST_PYTHON = (3, 11)
_NEVER = 10**8
"""Seconds. A limit of libFuzzer's would end the process while it waits for a check."""
INSTRUMENTED = (
    "torch._decomp.decompositions",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes",
    "torch._inductor.lowering",
    "torch._inductor.pattern_matcher",
)
"""Modules, and packages with all their modules. Instrumenting all of torch._inductor and torch._dynamo takes a minute
and a half, and most of their lines run for every case."""

_LEFT_OUT = ("torch._inductor.fx_passes.serialized_patterns",)
"""Patterns as data, which are loaded and not run."""

_LATE = (
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
)
"""Modules that Inductor imports at its first compile. libFuzzer counts its counters once, before that."""


def main() -> int:
    """Run libFuzzer until the parent ends the process. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.libfuzzer", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    options, rest = parser.parse_known_args()
    return worker.main(rest, before=_prepare, serve=functools.partial(_fuzz, options.corpus))


def _prepare() -> None:
    needs, python = "--engine atheris needs", sys.executable
    if sys.version_info < OLDEST_PYTHON:
        raise worker.ProcessUnusable(f"{needs} Python >= 3.11 and {python} is {sys.version.split()[0]}")
    for module, package in (("atheris", "atheris"), ("yaml", "pyyaml")):
        if importlib.util.find_spec(module) is None:
            raise worker.ProcessUnusable(f"{needs} the package {package}: {python} -m pip install {package}")
    _instrument_imports()
    for name in _LATE if importlib.util.find_spec("torch") is not None else ():
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def _instrument_imports() -> None:
    """Instrument modules as they are imported. `atheris.instrument_imports` knows whole distributions only."""
    read = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        code = read(self, fullname)
        if code is None or not _within(fullname, INSTRUMENTED) or _within(fullname, _LEFT_OUT):
            return code
        import atheris

        # The mutator never sees the operands of comparisons.
        patched: CodeType = atheris.patch_code(code, trace_dataflow=False)
        return patched

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _fuzz(directory: Path, requests: BinaryIO, wire: BinaryIO, answer: worker.MessageHandler) -> int:
    import atheris

    from fuzz import libfuzzer_inputs as inputs

    corpus = directory / "corpus"
    judged: set[str] = set()

    def judge(data: bytes) -> None:
        case = inputs.decode(data)
        if case.id in judged:
            return
        judged.add(case.id)
        worker.send(wire, Drawn(inputs.encode(case).decode()))
        check = worker.read_request(requests)
        if check is None:
            _end(0)
        worker.send(wire, answer(check))

    flags = [
        f"-artifact_prefix={directory}/",
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


def _exit_on_fault(function: Callable[..., Any], wire: BinaryIO) -> Callable[..., Any]:
    """End the process on an exception in `function`, as workers do. libFuzzer would count a crash and continue."""

    @functools.wraps(function)
    def run_or_exit(*args: Any) -> Any:
        try:
            return function(*args)
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
