"""benchmarks.reach runs a search under the real graph passes, and draws again what it kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.worker

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.reach", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_search_is_run_kept_told_and_drawn_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    done = run("--engine", "guided", "--cases", "6", "--at-once", "1", "--json", kept)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(kept.read_text())
    assert told["rewrites"] == sorted(told["rewrites"]) and told["rewrites"][-1] > 3
    assert sum(told["made"].values()) == told["cases"] == 6
    again = run("--from", kept, "--plot", tmp_path / "reach.png")
    assert again.stdout == done.stdout
    assert (tmp_path / "reach.png").stat().st_size > 5000
