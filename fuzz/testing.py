"""Checks for test suites: `check_attention(my_kernel)` fuzzes an attention function (docs/kernels.md), and
`check_module(my_factory)` compares the blocks of a module with float64 (guide-upgrade.md, guide-deploy.md)."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz.ask.worker_config import ROOT
from fuzz.run_summary import RunSummary


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
    variables = _make_importable()
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    if run.returncode == 0 and not RunSummary.load(out).waiting:
        shutil.rmtree(out)
        return
    replay = [
        "env",
        f"PYTHONPATH={variables['PYTHONPATH']}",
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "fuzz.pytest_plugin",
    ]
    replay += ["--case-subject", subject]
    replay += ["--case-python", str(options["python"])] if "python" in options else []
    replays = [f"  {shlex.join([*replay, str(file)])}" for file in (out / "found").glob("*.yaml")]
    raise AssertionError("\n".join([f"{run.stdout}{run.stderr}".strip(), *replays]))


def check_module(
    factory: Callable[[], Any] | str, *, pythons: Sequence[str] = (), subject: str | Sequence[str] = "inductor"
) -> None:
    """Compare eager with compiled, block by block, under this interpreter; or two torch versions (fuzz.compare).

    Args:
        factory: A function of a module, or "package.module:function", that gives (module, args) or
            (module, args, kwargs).
        pythons: The interpreters of the old and the new torch.
        subject: How blocks are compiled, such as "inductor" or ("onnxruntime", "openvino").

    Raises AssertionError with the table if a block is wrong or refused, whose case files are kept, or judged in part or
    not at all; or with the error of `fuzz.compare`.
    Raises ValueError for a function without a name.
    """
    name = factory if isinstance(factory, str) else _find_name(factory)
    command = [sys.executable, "-m", "fuzz.compare", "--quiet", "--module", name]
    command += [f"--subject={one}" for one in ([subject] if isinstance(subject, str) else subject)]
    command += [f"--python={python}" for python in pythons or (sys.executable,)]
    out = Path(tempfile.mkdtemp(prefix="attnfuzz-"))
    run = subprocess.run(
        [*command, "--out", out], capture_output=True, text=True, check=False, env=os.environ | _make_importable()
    )
    if run.returncode:
        with suppress(OSError):
            out.rmdir()  # A refused module has no case files.
        raise AssertionError(f"{run.stdout}{run.stderr}".strip())
    shutil.rmtree(out)


def _make_importable() -> dict[str, str]:
    """The PYTHONPATH with which another interpreter imports what this one does, apart from installed packages."""
    # The interpreter of `python` has packages of its own.
    foreign = (sysconfig.get_path("stdlib"), *(entry for entry in sys.path if entry.endswith(("-packages", ".zip"))))
    kept = (entry for entry in sys.path if entry and not entry.startswith(foreign))
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *kept])}


def _find_name(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return f"{module}:{name}"
    raise ValueError(f"workers import functions by name: {name or function!r} is no function of a module")
