"""A torch with a proposed change: a directory for PYTHONPATH that links to another torch, but for the changed files."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fuzz.ask.worker_config import WorkerConfig
from generators.errors import UserError

_FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"


@contextmanager
def patched_torch(config: WorkerConfig, patch: Path) -> Iterator[WorkerConfig]:
    """While entered, how to start a worker whose torch has the patch. Raises as `make_patched_torch`."""
    with tempfile.TemporaryDirectory(prefix="attnfuzz-patched-") as scratch:
        torch = Path(scratch) / "patched"
        make_patched_torch(patch, config.python, torch)
        path = f"{torch}:{config.environment()['PYTHONPATH']}"
        # Nothing is written beside the files of the other torch, and no cache of compiled code is shared with it.
        variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/cache"}
        yield replace(config, variables=tuple(variables.items()), patch=patch.name)


def list_changed(patch: Path) -> list[str]:
    """The files that a patch changes, such as torch/_inductor/config.py. Raises `UserError`."""
    if not patch.is_file():
        raise UserError(f"{patch}: no such file")
    names = [line.split("\t")[2] for line in _git(patch, patch.parent, "--numstat", "-z").split("\0") if line]
    if outside := [name for name in names if not (name.startswith("torch/") and name.endswith(".py"))]:
        raise UserError(f"{patch}: {outside[0]} is not a Python file of torch/")
    return names


def make_patched_torch(patch: Path, python: str, out: Path) -> None:
    """Write `out`/torch, which is the torch of an interpreter with the patch applied. Nothing of that torch changes.

    `patch`: a unified diff with names such as a/torch/_inductor/config.py.

    Raises `UserError` if there is no torch, or if the patch does not apply.
    """
    names = list_changed(patch)
    out.mkdir(parents=True, exist_ok=True)
    original = _find_torch(python, out)
    folders = {folder for name in names for folder in Path(name).parents if folder != Path()}
    for folder in sorted(folders):
        (out / folder).mkdir()
        with_changes = any(Path(name).parent == folder for name in names)
        for entry in (original.parent / folder).iterdir():
            link = folder / entry.name
            # The cached code of a file that changes could be taken for that of the changed file.
            if link in folders or str(link) in names or (with_changes and entry.name == "__pycache__"):
                continue
            (out / link).symlink_to(entry)
    for name in names:
        if (original.parent / name).is_file():
            shutil.copy(original.parent / name, out / name)
    _git(patch, out)


def _find_torch(python: str, cwd: Path) -> Path:
    try:
        found = subprocess.run([python, "-c", _FIND_TORCH], cwd=cwd, capture_output=True, text=True, check=True)
    except OSError as error:
        raise UserError(f"interpreter {python!r} does not start: {error.strerror or error}") from error
    except subprocess.CalledProcessError as error:
        raise UserError(f"interpreter {python!r} has no torch") from error
    return Path(found.stdout.strip())


def _git(patch: Path, cwd: Path, *options: str) -> str:
    """The output of `git apply`, outside of any repository. Raises `UserError`."""
    alone = {"GIT_CEILING_DIRECTORIES": str(cwd.absolute().parent)}
    try:
        done = subprocess.run(
            ["git", "apply", *options, str(patch.absolute())],  # noqa: S607 - the user's git
            cwd=cwd,
            env=os.environ | alone,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise UserError(f"git does not start: {error.strerror or error}") from error
    if done.returncode:
        raise UserError(f"{patch} does not apply: {done.stderr.strip().removeprefix('error: ')}")
    return done.stdout
