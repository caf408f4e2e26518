"""The check for test suites of kernel authors: what it raises for functions that are right, wrong and out of reach."""

import subprocess
from pathlib import Path

import pytest

from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import Results
from fuzz.testing import check_attention
from tests.campaign.fakes import case
from tests.check.planted_attention import only_float64, right, without_last_key
from tests.command import run_command


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns share the server of this process, which has imported torch."""
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run_command(command[2], *command[3:]))


@pytest.mark.worker
@pytest.mark.usefixtures("in_process")
def test_a_right_function_leaves_nothing(tmp_path: Path) -> None:
    check_attention(right, cases=3, directory=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.worker
def test_a_wrong_function_fails_with_its_case(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as error:
        check_attention(without_last_key, directory=tmp_path, workers=1, shrink_time="1s")
    (case,) = tmp_path.rglob("*.case.yaml")
    assert str(case) in str(error.value) and "class Module(nn.Module)" in str(error.value)


@pytest.mark.worker
@pytest.mark.usefixtures("in_process")
def test_a_function_that_takes_no_case_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="took 0 of 2 cases"):
        check_attention(only_float64, cases=2, directory=tmp_path, workers=1)


def test_failures_that_are_not_confirmed_in_time_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        out = Path(next(word.removeprefix("--out=") for word in command if word.startswith("--out=")))
        results, one = Results(out), case("exp")
        failure = SubjectResult("inductor", Verdict.TIMEOUT)
        results.record_case(one, position=(1, frozenset()), unexplained=[(one, failure)])
        results.close()
        return subprocess.CompletedProcess(command, 0, "2 suspicions not investigated yet", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(AssertionError, match="2 suspicions"):
        check_attention(right, seconds=1, directory=tmp_path)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="lambda"):
        check_attention(lambda q, k, v, *, scale: q)
