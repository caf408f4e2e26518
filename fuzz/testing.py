"""Fuzz an attention function in a test suite of its own: `check_attention(my_kernel)` is a test (docs/kernels.md)."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fuzz.run_store import Results
from fuzz.worker_config import ROOT


def check_attention(
    function: Callable[..., Any] | str,
    *,
    cases: int = 100,
    seconds: int | None = None,
    directory: Path | None = None,
    **options: object,
) -> None:
    """Fuzz `function`, or "package.module:function", with so many cases or for so many seconds, up to a finding.

    Failures that could not be confirmed in `seconds` are failures too.

    `options`: others of `fuzz.run` (device, python, workers, seed, which is 0 by default). `directory`: where a failing
    run is kept, by default with temporary files. Raises AssertionError with the minimal case, its numbers and the
    commands that replay it, or with the error, such as that it took no case; ValueError for one without a name.
    """
    subject = function if isinstance(function, str) else _find_name(function)
    out = Path(tempfile.mkdtemp(prefix="attnfuzz-", dir=directory))
    given = {"seed": 0, "budget": f"{seconds}s" if seconds else f"{cases}x", "out": out, "corpus": out / "found"}
    given |= options
    command = [sys.executable, "-m", "fuzz.run", f"--subject={subject}", "--quiet", "--fail-fast"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    # Another interpreter has its own packages.
    foreign = (sysconfig.get_path("stdlib"), *(entry for entry in sys.path if entry.endswith(("-packages", ".zip"))))
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry and not entry.startswith(foreign))])
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    if run.returncode == 0:
        with closing(Results.open_readonly(out)) as results:
            is_confirmed = not results.outcomes().get("waiting")
        if is_confirmed:
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
    raise ValueError(f"workers import what they check: {name or function!r} is no function of a module, by its name")
