"""Parsers read or refuse any bytes: kept inputs, and a number of inputs by Atheris."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parsers.checks import INPUTS, TARGETS

RUNS = {"case": 300, "ledger": 2000, "message": 2000, "rows": 40, "values": 2000}
"""Inputs of each target, seeds among them: as many as take a few seconds. The seeds of `case` are the corpus."""


@pytest.mark.parametrize("path", sorted(INPUTS.rglob("*.*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_inputs_are_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.samples
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris here")
@pytest.mark.parametrize("target", TARGETS)
def test_inputs_that_atheris_makes_are_read_or_refused(target: str, tmp_path: Path) -> None:
    arguments = [target, "--runs", str(RUNS[target]), "--keep", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "tests.parsers", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr[-1000:] + done.stdout).decode(errors="replace")
    assert not [*tmp_path.iterdir()]
