"""The page of known bugs: the committed page is what the command makes."""

import json
import re

from corpus import ledger
from fuzz.ask.worker_config import ROOT
from fuzz.commands import REPORTS
from generators.program.emit import source
from triage.bugs import PAGE, make_page, renew_reports
from triage.listed import list_bugs

LEDGER = ledger.load(ledger.LEDGER)
LISTED = list_bugs(LEDGER)


def test_the_committed_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text() == make_page(LISTED, [bug for bug in LEDGER.bugs if not bug.cases])


def test_the_committed_reports_have_the_rows_that_the_ledger_gives() -> None:
    for path, text in renew_reports(LISTED):
        assert path.read_text() == text


def test_a_report_is_about_the_example_that_its_command_takes() -> None:
    for one in LISTED:
        script = REPORTS / one.bug.id / "test_regression.py"
        program = source(one.entry.case).partition("def forward(")[2].partition("def inputs(")[0]
        assert not script.is_file() or program in script.read_text(), one.bug.id


def test_a_line_that_a_patch_shows_has_a_patch_of_its_file_that_holds() -> None:
    for one in LISTED:
        if one.bug.fault and one.bug.fault.shown_by == "patch":
            answer = json.loads((REPORTS / one.bug.id / "fix.json").read_text())
            assert answer["holds"] and f"torch/{one.bug.fault.file}" in answer["files"], one.bug.id


def test_the_first_example_is_silent_live_and_found_by_nobody_else() -> None:
    """The first report that the README names. Bugs that released models show come first."""
    (example, *_) = re.findall(r"docs/reports/([\w-]+)/test_regression\.py", (ROOT / "README.md").read_text())
    eligible = {
        one.bug.id: bool(one.bug.seen_in)
        for one in LISTED
        if one.is_live and one.is_silent and one.bug.is_open and one.bug.upstream and not one.bug.upstream.issues
    }
    assert example in eligible
    assert eligible[example] or not any(eligible.values())
