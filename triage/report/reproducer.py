"""repro.py: the emitted source of a case and a comparison that needs torch alone; and what it says when it is run."""

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fuzz.protocol import Verdict
from generators.program.case import Case
from generators.program.dtypes import category
from generators.program.emit import is_random, source
from generators.program.type_check import low_precision, types_of
from triage.rendering import render

TIMEOUT_EXIT = 124
"""The exit code recorded for a run that was stopped, as timeout(1) gives."""

CANT_RUN = 125
"""The exit code of a repro.py that can't run where it is, which `git bisect run` skips."""

MAX_LINES = 100
_FAR, _FAR_LOW_PRECISION = 0.0005, 0.05
"""Eager off by this share of a row's size is wrong: `astray_share` in fuzz/check/oracle/constants.py."""
_MARK = "# The program ends here"
DEATHS = frozenset({Verdict.WORKER_DIED, Verdict.OUT_OF_MEMORY})
ERRORS = frozenset({Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.OUT_OF_MEMORY})
IMPORTS = {
    Verdict.COMPILE_ERROR: {"traceback"},
    Verdict.RUNTIME_ERROR: {"traceback"},
    Verdict.OUT_OF_MEMORY: {"resource", "subprocess", "traceback"},
    Verdict.WORKER_DIED: {"subprocess"},
    Verdict.TIMEOUT: {"faulthandler"},
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of repro.py: its exit code, and what it wrote on stdout and on stderr."""

    code: int
    output: str
    log: str


def text(
    case: Case,
    verdict: Verdict,
    title: str,
    *,
    device: str = "cpu",
    dynamic: bool = False,
    own_random: bool = False,
    seconds: float = 60.0,
    memory_mib: int = 4096,
) -> str:
    """The text of repro.py for a case that fails with `verdict`. For `eager_suspect` it compiles nothing.

    `dynamic` compiles with symbolic sizes, which a dynamic case does anyway; `own_random` lets Inductor draw numbers of its own. `seconds` and `memory_mib` are the
    limits that a failure by time or memory breaks.
    """
    whole = render(
        "eager_repro.py.j2" if verdict is Verdict.EAGER_SUSPECT else "repro.py.j2",
        title=title.replace("\\", "/").replace('"', "'"),
        source=source(case).strip(),
        training=case.training,
        gradients=case.training and differentiable(case),
        dynamic=dynamic or case.dynamic,
        random=is_random(case),
        own_random=own_random,
        sdpa=any(op.kind == "sdpa" for op in case.ops),
        to_device="" if device == "cpu" else f'.to("{device}")',
        arguments="inputs()" if device == "cpu" else f'[a.to("{device}") for a in inputs()]',
        imports=sorted(({"sys"} if verdict is Verdict.EAGER_SUSPECT else {"os", "sys"}) | IMPORTS.get(verdict, set())),
        nulls=True,
        module="",
        **failing(verdict, seconds, memory_mib),
        share=_FAR_LOW_PRECISION if low_precision(case) else _FAR,
    )
    if whole.count("\n") < MAX_LINES:
        return whole
    program, mark, comparison = whole.partition(_MARK)
    return program + mark + comparison.replace("\n\n\n", "\n\n")


def failing(verdict: Verdict, seconds: float, memory_mib: int) -> dict[str, object]:
    """What the template of a repro.py asks of how the case fails, and the limits that time or memory breaks."""
    return {
        "raises": verdict in ERRORS,
        "misshapen": verdict is Verdict.METADATA,
        "flickers": verdict is Verdict.NONDETERMINISTIC,
        "hangs": verdict is Verdict.TIMEOUT,
        "hungry": verdict is Verdict.OUT_OF_MEMORY,
        "dies": verdict in DEATHS,
        "seconds": round(seconds),
        "memory_mib": memory_mib,
    }


def run(
    path: Path,
    python: str,
    *,
    backend: str = "inductor",
    seconds: float = 300.0,
    importable: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    more: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Run a repro.py with `arguments` under `python` with a compile cache of its own, and `more` in its environment. It can
    import from the directories `importable`."""
    with tempfile.TemporaryDirectory(prefix="attnfuzz-repro-") as scratch:
        environment = {
            **os.environ,
            **more,
            "TORCH_COMPILE_BACKEND": backend,
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", scratch),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if importable:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
        try:
            done = subprocess.run(
                [python, path.name, *arguments],
                cwd=path.parent,
                env=environment,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as stopped:
            return Run(TIMEOUT_EXIT, _decoded(stopped.stdout), _decoded(stopped.stderr))
    return Run(done.returncode, _decoded(done.stdout), _decoded(done.stderr))


def traced(path: Path, python: str, seconds: float = 300.0) -> Path:
    """Run a repro.py once more with TORCH_TRACE; gives trace.zip beside it, with what torch wrote."""
    archive = path.with_name("trace.zip")
    with tempfile.TemporaryDirectory(prefix="attnfuzz-trace-") as directory:
        run(path, python, seconds=seconds, more={"TORCH_TRACE": directory})
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for written in sorted(Path(directory).rglob("*")):
                if written.is_file():
                    file.write(written, written.relative_to(directory))
    return archive


def differentiable(case: Case) -> bool:
    """Whether something it returns can have a gradient."""
    types = types_of(case)
    return any(category(types[name].dtype) == 2 for name in case.returns)


def _decoded(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
