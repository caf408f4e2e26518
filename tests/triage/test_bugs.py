"""The page of known bugs: the committed page is what the command makes."""

import re

from corpus import ledger
from fuzz.worker_config import ROOT
from triage.bugs import LEDGER, PAGE, make_page, renew_reports
from triage.listed import list_bugs

LISTED = list_bugs(ledger.load(LEDGER))


def test_the_committed_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text() == make_page(LISTED)


def test_the_committed_reports_have_the_rows_that_the_ledger_gives() -> None:
    for path, text in renew_reports(LISTED):
        assert path.read_text() == text


def test_the_first_example_is_silent_live_and_found_by_nobody_else() -> None:
    """The first report that the README names. Bugs that released models show come first."""
    (example, *_) = re.findall(r"docs/reports/([\w-]+)/repro\.py", (ROOT / "README.md").read_text())
    eligible = {
        one.bug.id: bool(one.bug.seen_in)
        for one in LISTED
        if one.is_live and one.is_silent and one.bug.is_open and one.bug.upstream and not one.bug.upstream.issues
    }
    assert example in eligible
    assert eligible[example] or not any(eligible.values())
