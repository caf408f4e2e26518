"""A check for test suites: `check_attention(my_kernel)` fuzzes an attention function (docs/kernels.md)."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.run_summary import RunSummary
from fuzz.worker_config import ROOT


def check_attention(
    function: Callable[..., Any] | str,
    *,
    cases: int = 100,
    seconds: int | None = None,
    directory: Path | None = None,
    **options: object,
) -> None:
    """Fuzz `function`, or "package.module:function", up to a finding. A failure without confirmation counts too.

    Args:
        function: Workers import it by its name.
        cases: The number of cases, if `seconds` is not given.
        seconds: The duration.
        directory: Parent of the run's directory, which is kept on failure; by default the
            directory of temporary files.
        options: Options of `fuzz.run`, such as device, python, workers, and seed (by default 0).

    Raises AssertionError with the minimal case, its numbers and the commands that replay it, or with the error of
    `fuzz.run`. Raises ValueError for a function without a name.
    """
    subject = function if isinstance(function, str) else _find_name(function)
    out = Path(tempfile.mkdtemp(prefix="attnfuzz-", dir=directory))
    given = {"seed": 0, "budget": f"{seconds}s" if seconds else f"{cases}x", "out": out, "corpus": out / "found"}
    given |= options
    command = [sys.executable, "-m", "fuzz.run", f"--subject={subject}", "--quiet", "--fail-fast"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    # The interpreter of `python` has packages of its own.
    foreign = (sysconfig.get_path("stdlib"), *(entry for entry in sys.path if entry.endswith(("-packages", ".zip"))))
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry and not entry.startswith(foreign))])
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    if run.returncode == 0 and not RunSummary.load(out).waiting:
        shutil.rmtree(out)
        return
    replay = ["env", f"PYTHONPATH={path}", sys.executable, "-m", "pytest", "-p", "fuzz.pytest_plugin"]
    replay += ["--case-subject", subject]
    replay += ["--case-python", str(options["python"])] if "python" in options else []
    replays = [f"  {shlex.join([*replay, str(file)])}" for file in (out / "found").glob("*.yaml")]
    raise AssertionError("\n".join([f"{run.stdout}{run.stderr}".strip(), *replays]))


def _find_name(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return f"{module}:{name}"
    raise ValueError(f"workers import functions by name: {name or function!r} is no function of a module")
