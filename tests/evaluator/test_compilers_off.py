"""A compiler that is off: every command that judges says so in one line, and ends with exit code 2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus.entry import Entry, Expectation, save
from fuzz.cli import USAGE
from tests.campaign.fakes import FAKE, case
from tests.command import run_command

pytestmark = pytest.mark.worker

SWITCH = "TORCHDYNAMO_DISABLE=1 switches torch.compile off: unset it"
REFUSES = {"match": "", "subjects": ["eager"], "do": "refuse", "reason": SWITCH}
KNOWN = Expectation("known", "https://example.org/1", "<2.14", "inductor", "wrong_result")
Make = Callable[..., Path]


@pytest.fixture
def python(tmp_path: Path) -> Make:
    """Makes an interpreter for `--python` whose worker can judge no compiler."""

    def make(torch: str = "2.13.0", **rules: Any) -> Path:
        script = tmp_path / f"python-{torch}"
        given = json.dumps({"torch": torch, "rules": [REFUSES], **rules})
        command = [sys.executable, str(FAKE), given]
        script.write_text(f"#!{sys.executable}\nimport os\nos.execv({sys.executable!r}, {command!r})\n")
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A known bug."""
    return save(Entry(case("exp", "softmax"), expect=KNOWN), tmp_path)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fuzz.replay", "CASE --python PYTHON"),
        ("fuzz.compare", "CASE --python OLD --python PYTHON"),
        ("fuzz.shrink", "CASE --python PYTHON --out OUT"),
        ("triage.report", "CASE --python PYTHON --out OUT"),
        ("fuzz.run", "--python PYTHON --budget 5x --out OUT"),
    ],
)
def test_commands_end_with_one_line_and_exit_code_2(
    python: Make, known: Path, tmp_path: Path, name: str, arguments: str
) -> None:
    names = {"CASE": known, "PYTHON": python(), "OLD": python("2.12.0"), "OUT": tmp_path / "out"}
    done = run_command(name, *(names.get(word, word) for word in arguments.split()))
    assert done.returncode == USAGE, done
    assert done.stderr.splitlines()[-1].startswith("error: ") and done.stderr.endswith(f"{SWITCH}\n"), done.stderr
    assert "no longer there" not in done.stdout and "fixed" not in done.stdout


def test_a_campaign_refuses_before_its_first_case(python: Make, tmp_path: Path) -> None:
    done = run_command("fuzz.run", "--python", python(switch=SWITCH), "--budget", "5x", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.splitlines()[-1] == f"error: {SWITCH}"


def test_pytest_ends_with_exit_code_2(pytester: pytest.Pytester, python: Make) -> None:
    for kinds in (("exp",), ("exp", "softmax")):
        save(Entry(case(*kinds), expect=KNOWN), pytester.path)
    result = pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-python", str(python()))
    assert result.ret == USAGE
    result.stdout.fnmatch_lines(f"*{SWITCH}*")
    assert sum(SWITCH in line for line in result.outlines) == 1
