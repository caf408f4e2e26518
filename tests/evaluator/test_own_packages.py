"""Packages of other projects with the names of ours: one line and exit code 2, and never the code of new findings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.check.torch_api.exceptions import advise_on_import
from fuzz.own_packages import OWN_PACKAGES

ROOT = Path(__file__).parents[2]


def start(tmp_path: Path, foreign: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a directory that has a package of the name `foreign`, with our checkout behind it."""
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "__init__.py").touch()
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("foreign", "command"),
    [
        *((foreign, command) for foreign in ("generators", "corpus") for command in ("fuzz.run", "triage.report")),
        ("generators", "fuzz.check.worker"),
        ("fuzz", "triage.cluster"),
    ],
)
def test_a_foreign_package_in_the_way_is_refused_in_one_line(tmp_path: Path, foreign: str, command: str) -> None:
    done = start(tmp_path, foreign, "-m", command, "--help")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(tmp_path / foreign) in done.stderr


def test_programs_that_import_attnfuzz_get_an_exception(tmp_path: Path) -> None:
    text = "try:\n import fuzz.testing\nexcept ImportError as error:\n print(error)"
    done = start(tmp_path, "generators", "-c", text)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path / "generators") in done.stdout


def test_the_package_kernels_of_others_is_in_nobodys_way(tmp_path: Path) -> None:
    assert start(tmp_path, "kernels", "-m", "fuzz.run", "--help").returncode == 0


def test_a_function_of_the_users_in_such_a_package_is_told_why() -> None:
    missing = ModuleNotFoundError("No module named 'kernels.mine'", name="kernels.mine")
    assert "give yours another name" in advise_on_import(missing, "kernels.mine")
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} >= {*OWN_PACKAGES}
