"""What the ledger says of bugs, in a campaign."""

import json
import re
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus import ledger
from corpus.causes import CauseKey, MechanismKind, Stage
from corpus.entry import Entry, Found
from corpus.ledger import Ledger
from fuzz.ask.worker_process import Stopped
from fuzz.attribution.decide import load_ledger
from fuzz.campaign.session import RunResult, run_campaign
from fuzz.campaign.suspicion_queue import SuspicionQueue
from fuzz.known_bugs import KnownBugs
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.run_store import FindingRow, Results
from fuzz.status import status
from generators.errors import UserError
from generators.program.emit import source
from tests.campaign.fakes import case, options, raised, sampler
from tests.campaign.test_campaign import WRONG, events, found

pytestmark = pytest.mark.worker

URL = "https://github.com/pytorch/pytorch/issues/1"
SAME = "{ref: 'pytorch#1', relation: same, state: open}"
RELATED = "{ref: 'pytorch#2', relation: related, state: unknown}"
OTHER = {"match": "relu", "verdict": "compile_error", "failure": raised("KeyError", "buf7")}
EXAMPLE = Entry(
    case("softmax", rows=2), found=Found("wrong_result", "inductor", ("_sfdp_pattern_5_inference",), "2.13.0")
)


def ledger_of(directory: Path, status: str, example: Entry = EXAMPLE, upstream: str = "") -> Ledger:
    path = corpus_entry.save(example, directory / "beside")
    return ledger.loads(
        f"""
        ledger_format: 3
        bugs:
          - id: softmax
            title: attention is wrong
            status: "{status}"
            upstream: {{searched: 2026-09, issues: [{upstream}]}}
            cause: {{who: inductor, stage: joint_graph_passes, mechanism: constants_ignored}}
            decided_by: {{pattern_matcher_off: []}}
            cases: [beside/{path.name}]
            findings: [{example.case.id}]
        """.replace("\n        ", "\n"),
        directory / "ledger.yaml",
    )


def store(out: Path) -> list[FindingRow]:
    results = Results.open_readonly(out)
    try:
        return results.findings()
    finally:
        results.close()


def campaign(directory: Path, status: str, upstream: str = "", **given: Any) -> tuple[RunResult, Any]:
    asked = options(directory, ledger=ledger_of(directory, status, upstream=upstream), rules=[WRONG, OTHER], **given)
    return run_campaign(asked, sampler("softmax")), asked


@pytest.mark.parametrize(
    ("status", "upstream", "told"),
    [
        (f"reported {URL}", "", f"reported {URL}, not found upstream, searched 2026-09"),
        ("not_a_bug by design", "", "not a bug: by design, not found upstream, searched 2026-09"),
        ("fixed 2.14.0", "", "fixed in 2.14.0, not found upstream, searched 2026-09"),
        ("new", "", "new, not found upstream, searched 2026-09"),
        ("new", RELATED, "new, see also: pytorch#2"),
        ("new", f"{RELATED}, {SAME}", "known upstream: pytorch#1 (open)"),
    ],
)
def test_what_the_ledger_lists_is_told_and_turns_no_campaign_red(
    tmp_path: Path, status: str, upstream: str, told: str
) -> None:
    ending, given = campaign(tmp_path, status, upstream)
    assert ending.new == 0
    assert found(given) == []
    assert f" 20x softmax: attention is wrong ({told}) " in " ".join(ending.summary.split())
    # No time was spent on shrinking it.
    assert events(given, "SuspicionClosed") == []
    met = events(given, "KnownBugMet")
    assert len(met) == (status != "not_a_bug by design")
    assert [issue["ref"] for one in met for issue in one["upstream"].get("issues", ())] == re.findall(
        r"\w+#\d", upstream
    )
    (row,) = store(given.out)
    assert {event["explained_by"] for event in events(given, "SuspicionExamined")} == {row.case_id}


def test_a_listed_bug_is_shown_once_with_its_example_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = ledger_of(tmp_path, f"reported {URL}", replace(EXAMPLE, seen={"2.12.0": "wrong_result", "2.14.0": "ok"}))
    bug = replace(listed.bugs[0], id="integer-mask", versions=("2.11.0",))  # docs/reports has a report of that name
    given = options(tmp_path, "8x", ledger=replace(listed, bugs=(bug,)), rules=[WRONG])
    assert run_campaign(given, sampler("softmax")).new == 0
    printed = capsys.readouterr().out
    ((met,), first, *_) = (events(given, "KnownBugMet"), *events(given, "SuspicionExamined"))
    assert (met["bug"], met["title"], met["status"]) == (bug.id, bug.title, {"kind": "reported", "about": URL})
    assert met["versions"] == ["2.11.0", "2.12.0"]
    (path,) = listed.examples(bug)
    example = corpus_entry.load(path).case
    assert (met["case"], met["example"], met["path"]) == (first["case"], example.id, str(path))
    assert Path(met["report"]).is_file() and printed.count("docs/reports/integer-mask/report.md") == 1
    assert textwrap.indent(source(example).rstrip(), "    ") in printed
    # Not again when the campaign continues.
    run_campaign(given, sampler("softmax"))
    assert len(events(given, "KnownBugMet")) == 1
    status(given.out, json=tmp_path / "run.json")
    (data,) = json.loads((tmp_path / "run.json").read_text())
    assert [{"time": met["time"], "event": met["event"], **bug} for bug in data["known_bugs"]] == [met]


def test_a_known_bug_is_shown_before_work_on_other_failures(tmp_path: Path) -> None:
    given = options(tmp_path, "1x", ledger=ledger_of(tmp_path, f"reported {URL}"), rules=[WRONG, OTHER])
    given.out.mkdir()
    new = SubjectResult("passes", Verdict.COMPILE_ERROR, failure=Raised("KeyError", "buf7"))
    known = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_5_inference",))
    with closing(Results(given.out)) as results:
        unexplained = [(case("relu", "exp"), new), (case("softmax", "exp"), known)]
        results.record_case(case("exp"), position=(1, frozenset()), unexplained=unexplained)
    assert run_campaign(given, sampler("exp")).new == 1
    shown = [event["event"] for event in events(given) if event["event"] in ("KnownBugMet", "FindingSaved")]
    assert shown == ["KnownBugMet", "FindingSaved"]


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0.dev20260101"])
def test_a_fixed_bug_that_is_back_turns_it_red_and_is_called_so(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ending, given = campaign(tmp_path, f"fixed {version}", budget="8x")
    assert ending.new == 1
    ((saved,), (entry,)) = (events(given, "FindingSaved"), found(given))
    assert entry.case.id == saved["case"]
    assert f"regression: fixed in {version} and back: attention is wrong" in capsys.readouterr().out
    # It stays so every night, until somebody says otherwise in the ledger: in the same directory and in another.
    before = store(given.out)
    more, _ = campaign(tmp_path, f"fixed {version}", budget="8x")
    assert more.new == 1
    assert [(row.case_id, row.kind) for row in store(given.out)] == [(entry.case.id, "new")]
    assert store(given.out)[0].count == 2 * before[0].count
    again, _ = campaign(tmp_path, f"fixed {version}", budget="8x", out=tmp_path / "another")
    assert again.new == 1


def test_a_new_bug_that_looks_like_a_known_one_is_saved(tmp_path: Path) -> None:
    """The experiment of the known bug makes no difference to the new one."""
    new = {name: value for name, value in WRONG.items() if name != "unless"}
    given = options(tmp_path, "12x", ledger=ledger_of(tmp_path, f"reported {URL}"), rules=[new])
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == len(found(given)) == 1
    examined = events(given, "SuspicionExamined")
    known = [row.case_id for row in store(given.out) if row.kind == "known"]
    assert examined and not any(event["explained_by"] in known for event in examined)
    assert events(given, "KnownBugMet") == []


def test_what_looks_known_waits_and_is_counted_as_not_examined(tmp_path: Path) -> None:
    given = options(tmp_path, ledger=ledger_of(tmp_path, f"reported {URL}"))
    given.out.mkdir()
    results, known = Results(given.out), KnownBugs(given.ledger)
    list(known.load_ledger({"torch": "2.13.0"}))
    queue = SuspicionQueue(results, known)
    failed = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_5_inference",))
    cases = [(case("softmax", rows=rows), failed) for rows in (5, 6)] + [(case("relu"), failed)]
    for suspicion in results.record_case(case("exp"), position=(1, frozenset()), unexplained=cases):
        queue.put(suspicion)
    assert results.outcomes() == {"waiting": 1, "not_examined": 2}
    taken, alike = queue.take(), queue.take_alike()
    assert taken is not None and taken[0].case == case("relu")
    assert alike is not None and [one.case_id for one in alike[1]] == [*known.bugs]
    # Its experiments show that it is another bug.
    queue.put(alike[0], refuted=[*known.bugs])
    assert results.outcomes() == {"waiting": 2, "not_examined": 1}
    results.close()


def test_a_ledger_with_an_unknown_experiment_is_refused_in_one_line(tmp_path: Path) -> None:
    listed = ledger_of(tmp_path, "new")
    ledger.save(replace(listed, bugs=(replace(listed.bugs[0], decided_by=(("magic", ()),)),)))
    with pytest.raises(UserError, match=r"^\S+ledger.yaml: softmax: decided_by: 'magic' is not an experiment.*$"):
        load_ledger(listed.path)


def test_another_bug_beside_a_known_one_is_found(tmp_path: Path) -> None:
    given = options(tmp_path, "60x", ledger=ledger_of(tmp_path, f"reported {URL}"), rules=[WRONG, OTHER])
    assert run_campaign(given, sampler("softmax", "relu")).new == 1
    assert [op.kind for entry in found(given) for op in entry.case.ops] == ["relu"]


def test_what_is_new_is_told_from_what_is_known(tmp_path: Path) -> None:
    given = options(tmp_path, "60x", ledger=ledger_of(tmp_path, f"reported {URL}"), rules=[WRONG, OTHER])
    assert run_campaign(given, sampler("softmax", "relu")).new == 1
    status(given.out, json=tmp_path / "run.json")
    (data,) = json.loads((tmp_path / "run.json").read_text())
    assert (data["torch"], data["cases"], data["state"]) == ("2.13.0", 60, "budget spent")
    told = {(one["status"], one["verdict"]) for one in data["findings"]}
    assert told == {("known", "wrong_result"), ("new", "compile_error")}
    assert all(Path(one["file"]).is_file() for one in data["findings"])


def test_a_failure_that_shrinks_to_a_case_listed_under_a_bug_is_no_news(tmp_path: Path) -> None:
    """Though what is seen of it is not what is seen of the example."""
    first = options(tmp_path / "first", "8x", rules=[OTHER])
    assert run_campaign(first, sampler("relu")).new == 1
    ((entry,), known) = (found(first), ledger_of(tmp_path, f"reported {URL}"))
    bug = known.bugs[0]
    listed = Ledger(known.path, (replace(bug, findings=(entry.case.id,)),))
    given = options(tmp_path, "8x", ledger=listed, rules=[OTHER])
    ending = run_campaign(given, sampler("relu"))
    assert ending.new == 0 and found(given) == []
    assert f"attention is wrong (reported {URL}, not found" in " ".join(ending.summary.split())


def minimum(directory: Path) -> Entry:
    """What the failure of `OTHER` shrinks to."""
    first = options(directory, "8x", rules=[OTHER])
    assert run_campaign(first, sampler("relu")).new == 1
    (entry,) = found(first)
    return entry


def listing(directory: Path, *bugs: tuple[str, str, str]) -> Ledger:
    """Entries without examples: id, status, and the case each lists."""
    entries = [
        ledger.Bug(
            name,
            f"{name} is wrong",
            ledger.Status(*status.split(" ", 1)),
            cause=CauseKey("inductor", Stage.LOWERING, name, MechanismKind.WRONG),
            decided_by=(("dropped", (name,)),),
            findings=(case_id,),
        )
        for name, status, case_id in bugs
    ]
    return Ledger(directory / "ledger.yaml", tuple(entries))


@pytest.mark.parametrize(
    ("status", "new", "said"),
    [
        (f"reported {URL}", 0, ""),
        ("fixed 2.14.0", 0, ""),
        ("new", 0, ""),
        ("fixed 2.13.0", 1, "regression: fixed in 2.13.0 and back: relu is wrong"),
    ],
)
def test_an_entry_without_an_example_counts_for_the_cases_it_lists(
    tmp_path: Path, status: str, new: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = minimum(tmp_path / "first")
    given = options(tmp_path, rules=[OTHER], ledger=listing(tmp_path, ("relu", status, entry.case.id)))
    capsys.readouterr()
    ending = run_campaign(given, sampler("relu"))
    assert (ending.new, len(found(given))) == (new, new)
    assert said in capsys.readouterr().out
    if not new:
        # Shrunk once, and known by that from then on.
        assert "  20x relu: relu is wrong" in ending.summary
        assert len(events(given, "SuspicionClosed")) == 1
        assert [met["example"] for met in events(given, "KnownBugMet")] == [entry.case.id]
        again = run_campaign(given, sampler("relu"))
        assert again.new == 0 and "  40x relu: relu is wrong" in again.summary
        assert len(events(given, "SuspicionClosed")) == len(events(given, "KnownBugMet")) == 1


def test_a_case_is_of_the_bug_that_lists_it_rather_than_of_one_that_looks_alike(tmp_path: Path) -> None:
    entry = minimum(tmp_path / "first")
    alike = ledger_of(tmp_path, "fixed 2.13.0", replace(entry, case=case("relu", rows=7)))
    bugs = listing(tmp_path, ("exact", "fixed 2.13.0", entry.case.id)).bugs
    given = options(tmp_path, rules=[OTHER], ledger=Ledger(alike.path, (*alike.bugs, *bugs)))
    run_campaign(given, sampler("relu"))
    (saved,) = events(given, "FindingSaved")
    assert saved["ledger"] == "regression: fixed in 2.13.0 and back: exact is wrong"


def test_a_known_bug_is_not_saved_as_new_by_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ledger_of(tmp_path, f"reported {URL}", replace(minimum(tmp_path / "first"), case=case("relu", rows=7)))
    given = options(tmp_path, "2x", rules=[OTHER], ledger=listed)
    with monkeypatch.context() as interrupted:

        def stop(*_: object, **__: object) -> None:
            raise Stopped

        interrupted.setattr("fuzz.campaign.investigation_runner.identify", stop)
        assert run_campaign(given, sampler("relu")).new == 0
    assert found(given) == [] and events(given, "SuspicionClosed") == []
    run_campaign(given, sampler("relu"))
    assert len(events(given, "SuspicionClosed")) == 1
