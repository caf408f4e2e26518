"""benchmarks.reach runs a search under the real graph passes, and draws again what it kept."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import reach

pytestmark = pytest.mark.worker


def test_a_search_is_run_kept_told_and_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["reach", *map(str, arguments)])
        assert reach.main() == 0
        return capsys.readouterr().out

    kept = tmp_path / "kept.json"
    done = run("--engine", "guided", "--cases", "4", "--at-once", "1", "--json", kept)
    (told,) = json.loads(kept.read_text())
    assert told["rewrites"] == sorted(told["rewrites"]) and told["rewrites"][-1] > 3
    assert sum(told["made"].values()) == told["cases"] == 4
    assert run("--from", kept, "--plot", tmp_path / "reach.png") == done
    assert (tmp_path / "reach.png").stat().st_size > 5000
