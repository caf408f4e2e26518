"""Runs of scripts and of collect_env under the interpreter of a report, and the lines that a report shows."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Self, TypeVar

from corpus.value_files import link_files

T = TypeVar("T")
_FILE = "test_regression.py"
_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[WEI]\d{4} |[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)*?(?:(?:site|dist)-packages/|(?=torch/)|(?=[\w.+@~-]+(?![\w./+@~-])))")
"""The directories before a package or a file."""
_OWN = re.compile(
    r"\n(?:The above exception was the direct cause|During handling of the above exception)[^\n]*"
    r"(?=\n\nTraceback[^\n]*(?:\n[ ~^][^\n]*)*\nAssertionError: only )"
)
"""Before the error of a script that only the accused run raises."""
_PASS = re.compile(r'File ".*(fx_passes|pattern_matcher|_aot_autograd|_dynamo/(variables|symbolic_convert))')
"""Frames in files that make or rewrite graphs."""
_FACTS = re.compile(
    r"PyTorch version|Is debug build|(?:CUDA|ROCM|HIP) used|OS:|GCC|Clang|Libc|Python|Is CUDA|CUDA runtime|GPU models"
    r"|Nvidia|cuDNN|.*libcudnn\.so|\s*Architecture|\s*Model name|GPU \d"
    r"|\[(?:pip3|conda)\] (?:numpy|torch|triton|nvidia-cudnn\S*)[= ]"
)
"""The lines of collect_env that a reader needs; not the processor's flags, caches and vulnerabilities."""
SCRIPT_ENVIRONMENT = {"TORCH_COMPILE_BACKEND": "inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1", "CI": ""}
"""Environment variables of a run. Where CI is set, PyTorch's test runner needs a package that its wheel does not
bring (torch/testing/_internal/common_utils.py, IS_CI)."""
TIMEOUT_EXIT = 124
"""The exit code of a run that was stopped: timeout(1)'s."""


def shorten_log(log: str) -> str:
    """The last lines of the log, and before them its last frame in a graph pass, without chatter and directories.

    Of a script that raises its own error from torch's, torch's alone.
    """
    log = _OWN.split(log)[0]
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    lines = [_PATH.sub("", line) for line in lines]
    passes = [number for number, line in enumerate(lines[:-_MOST]) if _PASS.search(line)][-1:]
    before = [line for number in passes for line in (*lines[number : number + 2], "  ...")]
    return "\n".join([*before, *lines[-_MOST:]])


class ScriptRuns:
    """Runs scripts under an interpreter, one at a time, in a thread beside the caller's work.

    They share binaries of compiled code, since a first compilation takes 15 s, and no graphs: each script runs all of
    the compiler. Leaving the context ends the script that runs, and those that wait never start.
    """

    def __init__(self, python: str, seconds: float, compiled: Path | None = None) -> None:
        """seconds: the time limit of a script; compiled: a directory with binaries, such as that of a worker"""
        self.task = ""  # the script that runs
        self._python, self._seconds = python, seconds
        self._home = tempfile.TemporaryDirectory(prefix="attnfuzz-scripts-")
        self._compiled = compiled or Path(self._home.name, "compiled")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="scripts")
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
            if self._process is not None and self._process.poll() is None:
                # The whole group: timeout(1) may end without its command if the signal comes while it starts it. Of
                # 1,500 signals in the first 3 ms, 45 left the command alive (coreutils 9.1); to the group, none.
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)
        self._pool.shutdown(cancel_futures=True)
        self._home.cleanup()

    def submit(self, task: str, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do `work`, which may call `run`, in the thread. `task` names it on the screen."""

        def begin() -> T:
            self.task = task
            try:
                return work(*arguments)
            finally:
                self.task = ""

        return self._pool.submit(begin)

    def run(
        self,
        text: str,
        importable: tuple[str, ...] = (),
        *,
        beside: Iterable[Path] = (),
        keep: tuple[Path, Iterable[str]] = (Path(), ()),
    ) -> CompletedProcess[str]:
        """Run the text of a script to its end.

        importable: directories to import from
        beside: files that it reads
        keep: a directory, and the names of files that it writes, which are moved there
        """
        variables = os.environ | SCRIPT_ENVIRONMENT
        if importable:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*importable, os.environ.get("PYTHONPATH", ""))))
        home = Path(self._home.name, "script")
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self._compiled))
        for graphs in ("fxgraph", "aotautograd"):  # A worker keeps no graphs there.
            shutil.rmtree(self._compiled / graphs, ignore_errors=True)
        home.mkdir(exist_ok=True)
        (home / _FILE).write_text(text, encoding="utf-8")
        link_files(text, home)
        for file in beside:
            if file.is_file():
                shutil.copy(file, home)
        command = ["timeout", "--foreground", "--kill-after=5", str(self._seconds), self._python, _FILE]
        pipe = subprocess.PIPE
        with self._lock:
            if self._is_closed:
                raise CancelledError
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=variables,
                stdout=pipe,
                stderr=pipe,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        out, log = self._process.communicate()
        for name in keep[1]:
            if (home / name).is_file():
                keep[0].mkdir(parents=True, exist_ok=True)
                shutil.move(home / name, keep[0] / name)
        return CompletedProcess(command, self._process.returncode, out, log)


def collect(python: str, torch: str) -> str:
    """The output of collect_env without empty entries; if it fails, a line with the version `torch`."""
    lines = _read(python, "-m", "torch.utils.collect_env", seconds=180).splitlines()
    told = [line for line in lines if _FACTS.match(line) and not line.endswith(("N/A", "Could not collect"))]
    return "\n".join(told) or f"PyTorch version: {torch}\n(python -m torch.utils.collect_env failed)"


def version(distribution: str, python: str) -> str:
    """The version of a package under that interpreter; "" if it has none."""
    return _read(python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))", seconds=60)


def _read(*command: str, seconds: float) -> str:
    """The output of a command; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=seconds, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
