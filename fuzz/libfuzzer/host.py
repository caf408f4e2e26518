"""A worker that libFuzzer drives: it sends the case it draws, waits for the request, and answers as any worker.

    python -m fuzz.libfuzzer.host --corpus DIR --seed N [options of fuzz.check.worker]

`DIR/corpus` is libFuzzer's corpus, with which the next process continues. The parent limits time and memory and ends
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
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import BinaryIO, NoReturn, ParamSpec, TypeVar

from fuzz.check import worker
from fuzz.protocol import Drawn, Fault

P = ParamSpec("P")
R = TypeVar("R")

OLDEST_PYTHON = (3, 11)
_NEVER = 10**8
"""Seconds. A limit of libFuzzer's would end the process while it waits for a request."""
INSTRUMENTED = (
    "torch._decomp.decompositions",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes",
    "torch._inductor.lowering",
    "torch._inductor.pattern_matcher",
)
"""Modules, and packages with everything in them. Instrumenting all of torch._inductor and torch._dynamo takes a minute
and a half, and most of it runs for every case."""

_LEFT_OUT = ("torch._inductor.fx_passes.serialized_patterns",)
"""Patterns as data: they are loaded, not run."""

_LATE = (
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
)
"""Modules that Inductor imports at its first compile, which is too late: libFuzzer counts its counters once."""


def main() -> int:
    """Serve until run_or_exit to exit. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.libfuzzer.host", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options, rest = parser.parse_known_args()

    return worker.main(rest, before=_prepare, serve=functools.partial(_fuzz, options.corpus, options.seed))


def _prepare() -> None:
    needs, python = "--engine atheris needs", sys.executable
    if sys.version_info < OLDEST_PYTHON:
        raise worker.ProcessUnusable(f"{needs} Python >= 3.11 and {python} is {sys.version.split()[0]}")
    for module, package in (("atheris", "atheris"), ("yaml", "pyyaml")):
        if importlib.util.find_spec(module) is None:
            raise worker.ProcessUnusable(f"{needs} the package {package}: {python} -m pip install {package}")
    sys.meta_path.insert(0, _Finder())
    for name in _LATE if importlib.util.find_spec("torch") is not None else ():
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


class _Finder(MetaPathFinder):
    """Instruments modules as they are imported. To be installed before torch is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _within(fullname, INSTRUMENTED) or _within(fullname, _LEFT_OUT):
            return None
        # atheris.instrument_imports knows whole distributions only.
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        import atheris

        code = super().get_code(fullname)
        # Comparisons are of no use to a mutator that never sees their operands.
        return None if code is None else atheris.patch_code(code, trace_dataflow=False)


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


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
