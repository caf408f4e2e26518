"""Command lines in this process: as `python -m NAME`, without another interpreter's start; and Python in others."""

import contextlib
import importlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fuzz.cli import call

ROOT = Path(__file__).parents[1]


def load_command(name: str) -> Callable[..., int | None]:
    """The function behind `python -m NAME`."""
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{name}.__main__")
    command: Callable[..., int | None] = getattr(module, name.rpartition(".")[2])
    return command


def run_command(name: str, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What `python -m NAME ARGUMENTS` exits with and prints; `name` is `fuzz.run`, say."""
    given, out, error = [str(argument) for argument in arguments], io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = call(load_command(name), name, given)
    return subprocess.CompletedProcess(given, code, out.getvalue(), error.getvalue())


def run_python(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Another interpreter; `variables` of its environment beside ours."""
    command, environment = [sys.executable, *map(str, arguments)], os.environ | variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
