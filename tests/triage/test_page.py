"""The pages: `python -m triage.page` over run directories, and the committed page of known bugs."""

import html
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from corpus import ledger
from corpus.causes import Project, find_project
from corpus.entry import Entry, Expectation, Found
from fuzz.ask.worker_config import ROOT
from fuzz.commands import REPORTS
from fuzz.compilers.table import COMPILERS
from fuzz.events import CampaignEnded, CampaignStarted, CaseJudged, Event, WorkerDied
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult, Verdict
from fuzz.protocol.failures import Process, Raised
from fuzz.run_database import RESULTS_FILE
from fuzz.run_store import FindingRow, Results
from fuzz.run_summary import RunSummary
from generators.program.case import Case
from generators.program.emit import source
from tests.command import run_command
from tests.triage.conftest import NUMBERS
from triage.bugs import PAGE, renew_reports
from triage.bugs import make_page as make_page_of_bugs
from triage.listed import ListedBug, list_bugs
from triage.page import make_page

HOSTILE = "</code></pre><script>alert('x')</script>"
STARTED = CampaignStarted(
    seed=3,
    index=0,
    subjects=("passes", "inductor"),
    workers=1,
    torch="2.13.0",
    device="cpu",
    device_name="x86_64",
    pending=0,
)
JUDGED = CaseJudged(index=0, case="0123456789ab", worker=0, verdicts={"passes": Verdict.OK}, rejected=None)


def page(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("triage.page", *arguments)


def count(run: Path, *events: Event) -> None:
    """As if a run had these events, two seconds apart."""
    with Results(run) as results, patch("fuzz.run_store.time.monotonic") as clock:
        for number, event in enumerate(events):
            clock.return_value = 2.0 * number
            results.on_event(event, 1e9 + 2 * number)
        results.finish()


def found(case: Case) -> SubjectResult:
    return SubjectResult(
        "inductor",
        Verdict.WRONG_RESULT,
        numbers=NUMBERS,
        failure=Raised("Error", f"off {HOSTILE}"),
        applied_rewrites=("_sfdp_pattern_1_inference",),
        dynamo_same=False,
    )


def finding(case: Case, kind: str = "new") -> FindingRow:
    result = found(case)
    entry = Entry(
        case, note=HOSTILE, found=Found("wrong_result", "inductor", torch="2.13.0", device="cpu", message=HOSTILE)
    )
    return FindingRow(entry, "corpus/found/a b.case.yaml", result, kind, 3, 1e9, 1e9 + 60)


@pytest.fixture
def run(tmp_path: Path, case: Case) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    count(directory, STARTED, replace(JUDGED, index=1), CampaignEnded(reason="budget spent"))
    with Results(directory) as results:
        rewrites = [
            CoverageItem(CoverageKind.REWRITE, name) for name in ("_sfdp_pattern_3_half_training", "pointless_view")
        ]
        coverage = frozenset({*rewrites, CoverageItem(CoverageKind.OP, "aten.bmm")})
        results.record_case(case, replace(JUDGED, coverage=tuple(coverage)))
        results.add_finding(None, finding(case))
    return directory


def test_a_page_holds_findings_numbers_and_coverage(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = page(run, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 1 new finding, 0 known bugs met again\n"
    text = out.read_text()
    plain = html.unescape(re.sub(r"<[^>]*>", "", text))
    assert "[Inductor][CPU] attention (matmul, div, softmax, ...): Error: off" in plain
    assert "python -m fuzz.replay 'corpus/found/a b.case.yaml'" in plain
    assert "weights = scores.softmax(dim=-2)" in plain
    assert "2 rewrites, 1 op" in plain
    assert "out = (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-2) @ v" in plain  # the spelling, in one line
    assert "budget spent" in plain


def test_what_cases_and_messages_say_is_text_and_nothing_leaves_the_file(run: Path) -> None:
    text, _ = make_page(RunSummary.load(run))
    assert HOSTILE not in text
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in text
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)


def test_a_campaign_that_still_runs_is_shown_and_left_alone(run: Path, case: Case) -> None:
    count(run, STARTED, replace(JUDGED, index=2, rejected="no such thing"))
    with Results(run) as results:
        text, _ = make_page(RunSummary.load(run))
        results.on_event(STARTED, 1e9)  # still writable
    assert "eager refused 1 program" in text
    assert "was killed" in text
    assert "in 2 sessions" in text


def test_a_campaign_that_found_nothing_says_so(tmp_path: Path) -> None:
    Results(tmp_path).close()
    text, bugs = make_page(RunSummary.load(tmp_path))
    assert bugs == [] and "has not started" in text


def test_known_findings_are_no_news(run: Path, case: Case) -> None:
    directory = run.parent / "other"
    directory.mkdir()
    with Results(directory) as results:
        results.add_finding(None, finding(case, "known"))
    _, bugs = make_page(RunSummary.load(directory))
    assert [bug["news"] for bug in bugs] == [False]


def listing(case: Case, status: str, directory: Path) -> Path:
    """A ledger that lists the finding of this case."""
    ledger = directory / "ledger.yaml"
    ledger.write_text(f"""\
ledger_format: 3
bugs:
  - id: any-axis
    title: softmax over any axis is taken for the last
    status: {status}
    cause: {{who: inductor, stage: joint_graph_passes, part: attention_patterns, mechanism: constants_ignored}}
    decided_by: {{}}
    findings: ["{case.id}"]
""")
    return ledger


def test_what_the_ledger_lists_stands_under_its_title_and_status(run: Path, case: Case, tmp_path: Path) -> None:
    ledger = listing(case, "reported https://example.org/1", tmp_path)
    text, bugs = make_page(RunSummary.load(run), ledger)
    assert [(bug["title"], bug["news"]) for bug in bugs] == [("softmax over any axis is taken for the last", False)]
    assert '<a href="https://example.org/1" rel="noreferrer">' in text
    assert "Root cause: inductor, joint_graph_passes, patterns of attention, constants of the program ignored." in text


def test_what_others_reported_is_called_known_upstream_and_linked(run: Path, case: Case, tmp_path: Path) -> None:
    issue = "{ref: 'a/b#1', relation: same, state: open}"
    ledger = listing(case, f"new\n    upstream: {{searched: 2026-09, issues: [{issue}]}}", tmp_path)
    text, bugs = make_page(RunSummary.load(run), ledger)
    assert [(bug["status"], bug["news"]) for bug in bugs] == [("known upstream", False)]
    assert (
        '<a href="https://github.com/a/b/issues/1" rel="noreferrer">' in text and "known upstream: a/b#1 (open)" in text
    )


def test_silent_ones_come_before_loud_ones_and_lead_to_their_reports(run: Path, case: Case, tmp_path: Path) -> None:
    loud = replace(found(case), verdict=Verdict.COMPILE_ERROR)
    other = replace(case, mode="inference" if case.training else "training", contracts=())
    with Results(run) as results:
        results.add_finding(None, replace(finding(other), result=loud, count=9))
    report = tmp_path / "reports" / case.id / "report.md"
    report.parent.mkdir(parents=True)
    report.touch()
    text, bugs = make_page(RunSummary.load(run), reports=tmp_path / "reports")
    assert [(bug["silent"], bug["device"]) for bug in bugs] == [(True, "CPU"), (False, "CPU")]
    assert [bug["report"] for bug in bugs] == [f"../reports/{case.id}/report.md", None]
    assert text.count(f'href="../reports/{case.id}/report.md"') == 1


@pytest.mark.parametrize(
    ("kind", "version", "back"),
    [("new", "2.13.0", True), ("known", "2.13.0", True), ("new", "2.14.0", False), ("known", "2.14.0", False)],
)
def test_a_fixed_bug_that_is_back_is_for_somebody_to_look_at(
    tmp_path: Path, case: Case, kind: str, version: str, back: bool
) -> None:
    with Results(tmp_path) as results:
        results.add_finding(None, finding(case, kind))
        results.on_event(replace(STARTED, torch="2.13.0+cpu"), 1e9)
    ledger = listing(case, f"fixed {version}", tmp_path)
    text, bugs = make_page(RunSummary.load(tmp_path), ledger)
    assert [bug["news"] for bug in bugs] == [back]
    assert (f"regression: fixed in {version} and back in 2.13.0" in text) is back


def test_commands_name_the_interpreter_of_the_workers(tmp_path: Path, case: Case) -> None:
    with Results(tmp_path) as results:
        results.add_finding(None, finding(case, "new"))
        results.on_event(replace(STARTED, torch="2.15.0", python="/opt/torch-2.15/bin/python"), 1e9)
    ((bug,),) = [make_page(RunSummary.load(tmp_path))[1]]
    assert all(command.count("--python /opt/torch-2.15/bin/python") == 1 for command in bug["commands"])


def test_what_is_no_run_directory_is_an_error(tmp_path: Path) -> None:
    done = page(tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: no {RESULTS_FILE}, so not a run directory\n")
    (tmp_path / RESULTS_FILE).write_text("not a store, whatever its name says" * 100)
    done = page(tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "can't be opened" in done.stderr


def test_time_without_a_campaign_does_not_count(run: Path) -> None:
    count(run, STARTED, replace(JUDGED, index=2))
    assert "6s in 2 sessions since 2001-09-09 01:46 UTC" in make_page(RunSummary.load(run))[0]


def test_a_page_says_how_many_workers_were_lost_and_to_what(run: Path) -> None:
    for how in (Process.TIMEOUT, Process.SIGNAL):
        count(run, STARTED, WorkerDied(worker=0, reason="it ended", how=how))
    assert "2 workers were lost (1 timeout): " in make_page(RunSummary.load(run))[0]


LEDGER = ledger.load(ledger.LEDGER)
LISTED = list_bugs(LEDGER)


def test_the_committed_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text() == make_page_of_bugs(LISTED, [bug for bug in LEDGER.bugs if not bug.cases])


def test_each_project_has_its_section_with_its_own_versions(tmp_path: Path, case: Case) -> None:
    (bug,) = ledger.load(listing(case, "new", tmp_path)).bugs
    seen = {"openvino 2025.4.0": "ok", "openvino 2026.4.1": "wrong_result", "2.13.0": "wrong_result"}
    expect = Expectation("known", versions="openvino>=2026", subject="openvino", verdict="wrong_result")
    entry = Entry(case, expect=expect, seen=seen)
    cause = replace(bug.cause, who="openvino")
    listed = ListedBug(replace(bug, cause=cause), {tmp_path / "one.case.yaml": entry}, "openvino 2026.4.1")
    text = make_page_of_bugs([*(one for one in LISTED if one.bug.project is Project.PYTORCH), listed])
    of_torch, _, rest = text.partition("## OpenVINO\n")
    assert "| OpenVINO | 1 | 0 | 0 |" in of_torch
    assert "Versions tried on CPUs: openvino 2025.4.0, 2026.4.1.\n\n### Live in openvino 2026.4.1\n" in rest
    assert "| bug | shows | openvino | device |" in rest
    assert "| silent | 2026.4.1 | CPU |" in rest
    assert of_torch.count("openvino") == 0


def test_projects_are_those_of_the_compilers() -> None:
    assert {row.project for row in COMPILERS.values()} <= {*Project}
    foreign = {name: row for name, row in COMPILERS.items() if row.is_foreign}
    assert {name: find_project(name) for name in foreign} == {
        name: Project(row.project) for name, row in foreign.items()
    }
    assert all(find_project(row.project).package == row.packages[0].name for row in foreign.values())
    assert find_project("inductor") is find_project("package.module:function") is Project.PYTORCH


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
