"""Adapters name what is missing."""

import importlib.util
from pathlib import Path

import pytest

from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import SubjectError
from tests.command import run_command

ADAPTED = {
    "flaggems": ("flag_gems", "flag-gems"),
    "fla": ("fla", "fla-core"),
    "vllm": ("conch", "conch-triton-kernels"),
}


def subject_that_lacks_its_package(adapter: str) -> str:
    if importlib.util.find_spec(ADAPTED[adapter][0]):
        pytest.skip("it is installed")
    return f"kernels.adapters.{adapter}:attention"


@pytest.mark.parametrize("adapter", ADAPTED)
def test_a_missing_package_is_named(adapter: str) -> None:
    subject = subject_that_lacks_its_package(adapter)
    with pytest.raises(SubjectError) as caught:
        find(subject)
    assert ADAPTED[adapter][1] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.worker
def test_a_campaign_over_a_missing_package_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    subject = subject_that_lacks_its_package("fla")
    done = run_command("fuzz.run", "--budget", "1x", "--subject", subject, "--out", tmp_path / "run", "-q")
    assert done.returncode == 2
    # A busy machine may first be told that the worker takes its time to start.
    assert sum(line.startswith("error:") for line in done.stderr.splitlines()) == 1
