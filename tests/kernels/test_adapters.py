"""Adapters name what is missing, and give what the reference gives."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.check.exceptions import SubjectError
from fuzz.check.subject_builder import find
from kernels.adapters import flex
from tests.command import run_command
from tests.kernels.reference import math_attention

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
    assert done.stderr.count("\n") == 1


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor when it is first used
@pytest.mark.parametrize(
    "options",
    [
        {"causal": "bottom_right", "window": (5, -1), "alibi": torch.tensor([0.5, 0.25])},
        {"mask": torch.arange(40) % 3 > 0, "bias": torch.ones(2, 1, 40), "softcap": 2.0},
    ],
    ids=list,
)
def test_flex_gives_what_the_reference_gives(options: dict[str, Any]) -> None:
    q, k, v = torch.randn(1, 2, 30, 16), torch.randn(1, 1, 40, 16), torch.randn(1, 1, 40, 32)
    torch.testing.assert_close(
        flex.attention(q, k, v, scale=0.25, **options), math_attention(q, k, v, scale=0.25, **options)
    )
