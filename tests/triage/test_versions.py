"""What a report says of other torch versions."""

from corpus.entry import Entry, Found
from generators.program.case import Case
from tests.triage.conftest import ablation
from tests.triage.test_draft import RUN
from triage.report.draft import issue
from triage.report.versions import seen_in


def test_a_report_says_what_other_versions_gave(case: Case) -> None:
    found = Found("wrong_result", "inductor", torch="2.13.0+cpu")
    entry = Entry(case, found=found, seen={"2.9.1": "compile_error", "2.12.1": "ok"})
    told = "2.9.1 compile error, 2.12.1 ok, 2.13.0 wrong result"
    assert seen_in(entry, ablation()) == told
    assert f"under other versions: {told}.\n" in issue(case, ablation(), RUN, "", seen=seen_in(entry, ablation())).text


def test_one_version_is_no_comparison(case: Case) -> None:
    assert seen_in(Entry(case, found=Found("wrong_result", "inductor", torch="2.13.0")), ablation()) == ""
    assert "other versions" not in issue(case, ablation(), RUN, "").text
