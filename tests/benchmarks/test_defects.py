"""The planted defects of kernels: each changes the kernels as they are now."""

from pathlib import Path

import pytest

from benchmarks.defects import DEFECTS, KERNELS

PLAIN = Path(__file__).parents[2] / "benchmarks" / "plain.py"


@pytest.mark.parametrize("name", DEFECTS)
def test_the_kernels_have_the_text_that_a_defect_changes(name: str) -> None:
    defect = DEFECTS[name]
    text = (PLAIN if defect.file == PLAIN.name else KERNELS / defect.file).read_text()
    assert defect.old in text
    assert defect.also[0] in text
