"""The page of known bugs: what it says of versions, and that the committed one is what the command makes."""

from pathlib import Path

import pytest

from corpus import ledger
from triage.bugs import make_page, name_versions

ROOT = Path(__file__).parents[2]
VERSIONS = ["2.11.0", "2.12.1", "2.13.0", "2.14.0", "2.15.0"]


@pytest.mark.parametrize(
    ("failing", "named"),
    [
        ("11111", "all"),
        ("11000", "up to 2.12.1"),
        ("00011", "2.14.0 on"),
        ("00100", "2.13.0"),
        ("10110", "up to 2.11.0, 2.13.0 to 2.14.0"),
        ("00000", "none of these"),
    ],
)
def test_versions_that_fail_are_named_in_runs(failing: str, named: str) -> None:
    assert name_versions([one == "1" for one in failing], VERSIONS) == named


def test_the_committed_page_is_what_the_command_makes() -> None:
    page = ROOT / "docs" / "bugs.md"
    assert page.read_text() == make_page(ledger.load(ROOT / "corpus" / "ledger.yaml"), page.parent)
