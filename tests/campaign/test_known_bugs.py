"""What a campaign knows of bugs, without a campaign."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus import ledger
from corpus.causes import CauseKey, Details, MechanismKind, Stage, details
from corpus.entry import Entry, Expectation, Found, save, write
from corpus.ledger import Bug, Ledger
from fuzz.bug_identity import Signature
from fuzz.campaign.suspicion_queue import SuspicionQueue
from fuzz.known_bugs import KnownBug, KnownBugs
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Raised
from fuzz.protocol.rewrites import WrongRewrite
from fuzz.replay_result import read_recorded_result
from fuzz.run_store import Results
from generators.program.case import Case
from generators.records import encode
from tests.campaign.fakes import case, judged

TORCH = "2.13.0"
VERSIONS = {"torch": TORCH, "openvino": "2026.4.1"}
URL = "https://github.com/pytorch/pytorch/issues/1"


def entry(kind: str, rows: int = 2, verdict: str = "compile_error", error: str = "KeyError") -> Entry:
    found = Found(verdict, "inductor", torch=TORCH, failure=encode(Raised(error, kind)))
    return Entry(case(kind, rows=rows), found=found)


def ledger_with(directory: Path, status: str, example: Entry | None, *findings: str, right: Details = ()) -> Ledger:
    paths = (save(example, directory).name,) if example else ()
    bug = Bug(
        id="bug",
        title="wrong",
        cause=CauseKey("inductor", Stage.LOWERING, "relu", MechanismKind.WRONG, (), right),
        decided_by=(("dropped", ("relu",)),),
        status=ledger.Status(*status.split(" ", 1)),
        cases=paths,
        findings=findings,
    )
    return Ledger(directory / "ledger.yaml", (bug,))


def list_alike(known_bugs: KnownBugs, one: Entry) -> list[str]:
    symptom = known_bugs.symptom(read_recorded_result(one), one.case)
    return [finding.case_id for finding in known_bugs.list_alike(symptom)]


def explain(known_bugs: KnownBugs, one: Entry, *, minimal: bool = True) -> str:
    """The case id of the finding, or the id of the bug of the ledger; "" if none explains the failure."""
    symptom = known_bugs.symptom(read_recorded_result(one), one.case)
    known = known_bugs.find(symptom, one.case) if minimal else known_bugs.find_by_rewrites(symptom)
    return "" if known is None else known.case_id or (known.bug.id if known.bug else "")


def test_what_looks_like_a_finding_is_not_known_without_an_experiment() -> None:
    known = KnownBugs()
    assert known.learn(entry("relu"), from_corpus=False)
    assert not known.learn(entry("relu"), from_corpus=False)
    assert list_alike(known, entry("relu", rows=5)) == [entry("relu").case.id]
    assert explain(known, entry("relu", rows=5)) == ""
    assert explain(known, entry("relu", error="IndexError")) == entry("relu").case.id
    assert explain(known, entry("relu", error="IndexError"), minimal=False) == ""
    assert list_alike(known, entry("relu", error="IndexError")) == []


def masked(*right: str, rows: int = 2, verdict: str = "wrong_result") -> Entry:
    """A failure of a rewrite that is right under these changes of its mask; not measured where there are none."""
    rewrites = (encode(WrongRewrite("_sfdp_pattern_15_inference", {"attn_mask": right})),) if right else ()
    fired = ("_sfdp_pattern_15_inference",)
    found = Found(verdict, "passes", torch=TORCH, fired=fired, rewrites=rewrites)
    return Entry(case("relu", rows=rows), found=found)


def test_measurements_decide_at_once_and_words_do_not() -> None:
    known = KnownBugs()
    assert known.learn(masked("all 1"), from_corpus=False)
    assert explain(known, masked("all 1", rows=5)) == masked("all 1").case.id
    assert explain(known, masked(rows=6)) == ""
    assert list_alike(known, masked(rows=6))
    assert list_alike(known, masked("all -1", "one 0 in 1", rows=8)) == []


def test_an_error_beside_a_wrong_rewrite_needs_an_experiment() -> None:
    known = KnownBugs()
    assert known.learn(masked("all 1", verdict="runtime_error"), from_corpus=False)
    assert explain(known, masked("all 1", rows=5, verdict="runtime_error")) == ""
    assert list_alike(known, masked("all 1", rows=5, verdict="runtime_error"))


def test_what_is_expected_to_pass_or_of_another_torch_explains_nothing() -> None:
    known, one = KnownBugs(), case("relu")
    assert not known.learn(Entry(one))
    assert not known.learn(Entry(one, expect=Expectation("pass", verdict="compile_error")), versions=VERSIONS)
    old = Expectation("known", URL, "<2.13", "inductor", "compile_error")
    assert not known.learn(Entry(one, expect=old), versions=VERSIONS)
    assert known.learn(Entry(one, expect=old), versions={"torch": "2.12.0"})


@pytest.mark.parametrize(
    ("status", "explains"), [(f"known {URL}", True), ("fixed 2.14.0", True), ("new", True), ("fixed 2.13.0", False)]
)
def test_bugs_that_are_back_are_watched_for_and_others_explain(tmp_path: Path, status: str, explains: bool) -> None:
    example, listed = entry("relu"), entry("log")
    known = KnownBugs(ledger_with(tmp_path, status, example, listed.case.id))
    assert [one.case.id for _, one in known.load_ledger(VERSIONS)] == [example.case.id] * explains
    alike = entry("relu", rows=5)
    assert list_alike(known, alike) == [example.case.id] * explains
    assert explain(known, listed) == example.case.id
    back = known.find_regression(known.symptom(read_recorded_result(alike), alike.case), None)
    assert (back is None) is explains
    assert list(known.bugs) == [example.case.id] * explains
    without_example = KnownBugs(ledger_with(tmp_path, status, None, listed.case.id))
    assert without_example.load_ledger(VERSIONS) == []
    found = without_example.find(without_example.symptom(read_recorded_result(listed), listed.case), listed.case)
    assert found is not None and found.bug is not None
    assert found.is_back is not explains


@pytest.mark.parametrize("status", ["new", "fixed 2.14.0", "fixed 2.13.0"])
def test_a_bug_without_an_example_is_found_by_its_cause(tmp_path: Path, status: str) -> None:
    cause = CauseKey("eager", Stage.OPERATION, "aten.bmm", MechanismKind.NOT_FINITE_IN, details(dtype="bfloat16"))
    (bug,) = ledger_with(tmp_path, status, None).bugs
    known = KnownBugs(Ledger(tmp_path / "ledger.yaml", (replace(bug, cause=cause),)))
    assert known.load_ledger(VERSIONS) == []
    assert known.list_of_cause(replace(cause, details=())) == []
    assert [one.bug for one in known.list_of_cause(cause)] == [replace(bug, cause=cause)] * (status != "fixed 2.13.0")
    # The first case becomes its example, which comes first from now on.
    added = known.add(KnownBug("first", None, (cause,), bug.decided_by, bug=bug))
    assert known.list_of_cause(cause)[0] is added


def test_a_saved_finding_of_a_bug_that_is_back_explains_nothing(tmp_path: Path) -> None:
    known = KnownBugs(ledger_with(tmp_path, "fixed 2.13.0", entry("relu")))
    known.load_ledger(VERSIONS)
    assert not known.learn(entry("relu"), versions=VERSIONS)


def test_what_is_measured_of_a_cause_explains_where_its_example_says_less(tmp_path: Path) -> None:
    """A mask of one element has no second one to change."""
    seen = masked("all 1", "one 0 in 1", rows=5)
    for right, explains in (((), False), ((("attn_mask", ("all 1", "one 0 in 1")),), True)):
        known = KnownBugs(ledger_with(tmp_path, "new", masked("all 1"), right=right))
        known.load_ledger(VERSIONS)
        assert bool(explain(known, seen, minimal=False)) is explains


def test_a_bug_is_shown_by_its_smallest_example_for_the_torch_and_device(tmp_path: Path) -> None:
    cases = {"a": ("exp",), "b": ("exp", "relu"), "c": ("exp", "relu", "exp"), "d": ("exp", "relu", "sin")}
    expected = {"a": "cuda", "b": "cpu", "c": "cpu", "d": "cpu"}
    versions = {"a": "", "b": "<2.13", "c": "", "d": ">=2.14"}
    (bug,) = ledger_with(tmp_path, "new", None).bugs
    for name, kinds in cases.items():
        expect = Expectation("known", "", versions[name], "inductor", "compile_error", expected[name])
        write(Entry(case(*kinds), expect=expect), tmp_path / f"{name}.case.yaml")
    known = KnownBugs(Ledger(tmp_path / "ledger.yaml", (replace(bug, cases=tuple(f"{n}.case.yaml" for n in cases)),)))
    known.load_ledger(VERSIONS)
    met = known.meet(case("exp").id, "failing", "cpu")
    assert met is not None and (met.case, met.example) == ("failing", case("exp", "relu", "exp").id)
    assert known.meet(case("exp", "relu").id, "failing", "cpu") is None


def fill(results: Results, queue: SuspicionQueue, *cases: Case) -> Signature:
    """Put a timeout of each case into the queue; gives their signature."""
    result = SubjectResult("inductor", Verdict.TIMEOUT)
    failures = [(one, result) for one in cases]
    for suspicion in results.record_case(case("exp"), judged(), unexplained=failures):
        queue.put(suspicion)
    return KnownBugs().symptom(result, case("exp")).signature


def test_suspicions_of_one_signature_get_their_turn(tmp_path: Path) -> None:
    """The smallest first. Then the oldest, and several at a time, since what was found explains none of them."""
    with Results(tmp_path) as results:
        queue = SuspicionQueue(results, KnownBugs())
        kinds = [("exp",) * 4, ("exp",), ("exp",) * 3, ("exp",) * 2, ("exp",) * 5, ("exp",) * 6]
        signature = fill(results, queue, *(case(*one) for one in kinds))

        def take() -> int | None:
            taken = queue.take()
            return None if taken is None else len(taken[0].case.ops)

        assert [take(), take()] == [1, None]
        queue.finish(signature, fruitful=True)
        assert [take(), take()] == [4, None]
        queue.finish(signature, fruitful=True)
        assert [take(), take(), take()] == [3, 2, None]


def test_suspicions_about_the_users_function_come_before_those_about_eager(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        queue = SuspicionQueue(results, KnownBugs(), eager_last=True)
        failures = [
            (case("exp"), SubjectResult("mine:attention", Verdict.EAGER_SUSPECT)),
            (case("exp", "exp"), SubjectResult("mine:attention", Verdict.WRONG_RESULT)),
            (case("exp", "exp"), SubjectResult("mine:attention", Verdict.RUNTIME_ERROR)),
        ]
        for suspicion in results.record_case(case("exp"), judged(), unexplained=failures):
            queue.put(suspicion)
        taken = [queue.take() for _ in failures]
        assert [one[0].result.verdict for one in taken if one] == ["wrong_result", "runtime_error", "eager_suspect"]


def test_wrong_numbers_of_another_compiler_come_before_its_exceptions(tmp_path: Path) -> None:
    """Others wait longer: those of torch.compile go as they come."""
    with Results(tmp_path) as results:
        queue = SuspicionQueue(results, KnownBugs())
        failures = [
            (case("exp"), SubjectResult("openvino", Verdict.COMPILE_ERROR)),
            (case("exp", "sin"), SubjectResult("mine:compile", Verdict.RUNTIME_ERROR)),
            (case("exp", "exp"), SubjectResult("inductor", Verdict.COMPILE_ERROR)),
            (case("exp", "relu"), SubjectResult("openvino", Verdict.WRONG_RESULT)),
        ]
        for suspicion in results.record_case(case("exp"), judged(), unexplained=failures):
            queue.put(suspicion)
        first = [queue.take(with_exceptions=False) for _ in failures]
        assert [one[0].result.subject for one in first if one] == ["inductor", "openvino"]
        rest = [queue.take() for _ in failures]
        assert [one[0].result.verdict for one in rest if one] == ["compile_error", "runtime_error"]
