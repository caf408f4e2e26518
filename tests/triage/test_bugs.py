"""The page of known bugs: the committed page is what the command makes."""

from corpus import ledger
from triage.bugs import LEDGER, PAGE, make_page, renew_reports
from triage.listed import list_bugs

LISTED = list_bugs(ledger.load(LEDGER))


def test_the_committed_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text() == make_page(LISTED)


def test_the_committed_reports_have_the_rows_that_the_ledger_gives() -> None:
    for path, text in renew_reports(LISTED):
        assert path.read_text() == text
