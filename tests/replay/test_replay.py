"""`python -m fuzz.replay` and `python -m fuzz.show`, typed as a user types them."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch._inductor.config as inductor_config

from corpus.entry import Entry, Expectation, Found, load_directory, save
from fuzz.campaign import investigation
from generators.program.emit import source
from generators.program.settings import SETTINGS, list_available
from generators.sampling.sample import sample
from tests.command import ROOT, run_command
from tests.replay.conftest import FakePython

pytestmark = pytest.mark.worker

SEEDS = ROOT / "corpus" / "seeds"
CASE = sample(1, 2)


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command(f"fuzz.{module}", *arguments)


def test_show_prints_the_text_that_runs(tmp_path: Path) -> None:
    path = save(Entry(CASE), tmp_path)
    command = [sys.executable, "-m", "fuzz.show", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, source(CASE) + "\n", "")


def test_show_tells_several_cases_apart(tmp_path: Path) -> None:
    paths = [save(Entry(sample(1, i)), tmp_path) for i in (3, 4)]
    done = run("show", tmp_path)
    assert done.stdout.count("class Module") == 2
    assert all(f"# {path}\n" in done.stdout for path in paths)


@pytest.mark.parametrize(
    ("expectation", "verdict", "code", "words"),
    [
        (None, "ok", 0, "as expected"),
        (None, "wrong_result", 1, "not as expected"),
        (Expectation("known", "https://example.org/1"), "wrong_result", 0, "still there"),
        (Expectation("known", "https://example.org/1"), "ok", 1, "expected a finding (https://example.org/1)"),
    ],
)
def test_the_exit_code_says_whether_all_was_as_expected(
    tmp_path: Path, fake_python: FakePython, expectation: Expectation | None, verdict: str, code: int, words: str
) -> None:
    path = save(Entry(CASE, expect=expectation), tmp_path)
    done = run("replay", path, "--python", fake_python(verdict))
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"{path}: ")
    assert words in done.stdout
    assert f"inductor {verdict}: as told\n    torch._dynamo.utils.same: False\n    rewrites: _sfdp" in done.stdout


@pytest.mark.parametrize(
    ("verdict", "torch", "code", "words"),
    [
        ("wrong_result", "2.13.0", 0, "still there under torch 2.13.0\n"),
        ("ok", "2.13.0", 1, "no longer there under torch 2.13.0\n"),
        ("nonfinite", "2.13.0", 1, "not as expected under torch 2.13.0\n"),
        ("ok", "2.14.0", 0, "gone, as expected under torch 2.14.0\n"),
    ],
)
def test_what_a_campaign_found_is_not_called_known(
    tmp_path: Path, fake_python: FakePython, verdict: str, torch: str, code: int, words: str
) -> None:
    path = save(Entry(CASE, found=Found("wrong_result", "inductor", torch="2.13.0")), tmp_path)
    done = run("replay", path, "--python", fake_python(verdict, torch=torch))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"{path}: {words}")
    assert "known" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "case file"),
        (["nowhere.case.yaml"], "nowhere.case.yaml"),
        (["README"], "README"),
        (["pyproject.toml"], "pyproject.toml:2"),
        ([SEEDS, "--device", "tpu"], "--device"),
        ([SEEDS, "--timeout", "60"], "'60'"),
        ([SEEDS, "--python", "/nowhere/python"], "'/nowhere/python'"),
        ([SEEDS, "--subject", "magic"], "'magic'"),
        ([SEEDS, "--subjet", "passes"], "--subjet"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    fake_python: FakePython, arguments: list[str | Path], named: str
) -> None:
    if "--python" not in arguments:
        arguments = [*arguments, "--python", fake_python("ok")]
    done = run("replay", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.usefixtures("one_worker")
def test_a_torch_without_a_setting_skips_the_case_and_names_it(tmp_path: Path) -> None:
    has = list_available(version("torch"), "cpu")
    lacked = [name for name, one in SETTINGS.items() if "cpu" in one.devices and name not in has]
    lacked = [name for name in lacked if not hasattr(inductor_config, name)]  # others are there and do nothing
    if not lacked:
        pytest.skip("this torch has every setting")
    case = replace(CASE, settings=((lacked[0], SETTINGS[lacked[0]].values[0]),))
    done = run("replay", save(Entry(case), tmp_path))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if lacked[0] in line and version("torch") in line]


@pytest.mark.usefixtures("one_worker")
def test_the_reported_pattern_11_is_rounding_and_the_numbers_say_so() -> None:
    # `passes` applies the same rewrites as `inductor`; pytest on corpus/seeds replays it under the latter.
    done = run("replay", SEEDS / "sfdp-pattern-11-single-head.case.yaml", "--subject", "passes")
    assert done.returncode == 0, done.stderr
    assert "as expected" in done.stdout
    assert "passes rounding: " in done.stdout
    assert "largest error of compiled" in done.stdout
    assert "largest error of eager" in done.stdout
    assert "_sfdp_pattern_" in done.stdout


def test_an_interrupt_of_shrinking_saves_the_smallest_case_so_far(
    tmp_path: Path, fake_python: FakePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])

    def fail_once(*_: object, **__: object) -> bool:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr(investigation, "is_same_failure", fail_once)
    path = save(Entry(CASE), tmp_path / "given")
    done = run("shrink", path, "--python", fake_python("wrong_result"), "--out", tmp_path / "small")
    assert done.returncode == 130
    (entry,) = load_directory(tmp_path / "small").values()
    assert entry.case != CASE and entry.found is not None
