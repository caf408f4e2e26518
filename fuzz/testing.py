"""Fuzz an attention function in a test suite of its own: `check_attention(my_kernel)` is a test (docs/kernels.md)."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuzz.evaluator import ROOT


def check_attention(
    function: Callable[..., Any] | str,
    *,
    cases: int = 100,
    seconds: int | None = None,
    directory: Path | None = None,
    **options: object,
) -> None:
    """Fuzz `function`, or "package.module:function", with so many cases or for so many seconds, up to a finding.

    `options`: others of `fuzz.run` (device, python, workers, seed, which is 0 by default). `directory`: where a failing
    run is kept, by default with temporary files. Raises AssertionError with the minimal case, its numbers and the
    commands that replay it, or if the function took no case; ValueError for one that workers can't import;
    RuntimeError for bugs of attnfuzz.
    """
    subject = function if isinstance(function, str) else _find_name(function)
    out = Path(tempfile.mkdtemp(prefix="attnfuzz-", dir=directory))
    given = {"seed": 0, "budget": f"{seconds}s" if seconds else f"{cases}x", "out": out, "corpus": out / "found"}
    command = [sys.executable, "-m", "fuzz.run", f"--subject={subject}", "--quiet", "--fail-fast"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in (given | options).items()]
    path = os.pathsep.join([str(ROOT), *_find_home(subject), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    if run.returncode == 0:
        shutil.rmtree(out)
        return
    if run.returncode not in (1, 2):
        raise RuntimeError(run.stderr)
    replay = f"  PYTHONPATH={path} {sys.executable} -m pytest -p fuzz.pytest_plugin {{}} --case-subject {subject}"
    replays = [replay.format(file) for file in (out / "found").glob("*.yaml")]
    raise AssertionError("\n".join([f"{run.stdout}{run.stderr}".strip(), *replays]))


def _find_name(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
        raise ValueError(
            f"workers import what they check: {name or function!r} is no function of a module, by its name"
        )
    return f"{module}:{name}"


def _find_home(subject: str) -> list[str]:
    """The directory that the package of a function is imported from here, unless each interpreter has its own."""
    spec = find_spec(subject.partition(":")[0].partition(".")[0])
    places = [*(spec.submodule_search_locations or []), *filter(None, [spec.origin])] if spec else []
    return [str(Path(place).parent) for place in places[:1] if "site-packages" not in place]
