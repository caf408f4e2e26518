"""Faults of the surroundings of a process: packages with our names, and compilers that are switched off."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus.entry import Entry, Expectation, save
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.check.torch_api.exceptions import advise_on_import
from fuzz.cli import USAGE
from fuzz.own_packages import OWN_PACKAGES
from fuzz.protocol import Verdict
from generators.sampling.sample import sample
from tests.campaign.fakes import case, write_python
from tests.command import ROOT, run_command, run_python


def start(tmp_path: Path, foreign: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a directory that has a package of the name `foreign`, with our checkout behind it."""
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "__init__.py").touch()
    return run_python(*arguments, cwd=tmp_path, PYTHONPATH=str(ROOT))


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


@pytest.mark.worker
def test_an_environment_with_the_other_package_keeps_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "site" / "kernels"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.setenv("PYTHONPATH", str(theirs.parent))
    with open_evaluator(WorkerConfig()) as evaluator:
        cases = (sample(3, index, attention_only=True) for index in range(20))
        plain = next(case for case in cases if case.contracts[0].dropout == 0)
        result = evaluator.ask(Question(plain, ("triton",))).only
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING)


SWITCH = "TORCHDYNAMO_DISABLE=1 switches torch.compile off: unset it"
REFUSES = {"match": "", "subjects": ["eager"], "do": "refuse", "reason": SWITCH}
KNOWN = Expectation("known", "https://example.org/1", "<2.14", "inductor", "wrong_result")
Make = Callable[..., Path]


@pytest.fixture
def python(tmp_path: Path) -> Make:
    """Makes an interpreter for `--python` whose worker can judge no compiler."""

    def make(torch: str = "2.13.0", **rules: Any) -> Path:
        return write_python(tmp_path / f"python-{torch}", torch, **{"rules": [REFUSES], **rules})

    return make


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A known bug."""
    return save(Entry(case("exp", "softmax"), expect=KNOWN), tmp_path)


@pytest.mark.worker
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


@pytest.mark.worker
def test_a_campaign_refuses_before_its_first_case(python: Make, tmp_path: Path) -> None:
    done = run_command("fuzz.run", "--python", python(switch=SWITCH), "--budget", "5x", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.splitlines()[-1] == f"error: {SWITCH}"


@pytest.mark.worker
def test_pytest_ends_with_exit_code_2(pytester: pytest.Pytester, python: Make) -> None:
    for kinds in (("exp",), ("exp", "softmax")):
        save(Entry(case(*kinds), expect=KNOWN), pytester.path)
    result = pytester.runpytest("-p", "fuzz.pytest_plugin", "--case-python", str(python()))
    assert result.ret == USAGE
    result.stdout.fnmatch_lines(f"*{SWITCH}*")
    assert sum(SWITCH in line for line in result.outlines) == 1
