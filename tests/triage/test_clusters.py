"""Findings grouped by root cause, attributed by a fake."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import ledger
from corpus.causes import CauseKey, Details, Mechanism, MechanismKind, Part, Stage, details
from corpus.entry import Entry, Found
from corpus.ledger import Bug, Ledger, Status
from fuzz.attribution.root_cause import RootCause
from fuzz.protocol.rewrites import WrongRewrite
from generators.errors import UserError
from tests.campaign.fakes import case
from triage.cluster.clusters import Cluster, cluster, record, update_ledger
from triage.cluster.findings import Attributed, Finding

EMPTY = Ledger(Path("ledger.yaml"))
M = MechanismKind


def entry(
    rows: int = 2, verdict: str = "wrong_result", subject: str = "inductor", message: str = "", kind: str = "softmax"
) -> Entry:
    return Entry(
        case(kind, rows=rows),
        found=Found(verdict, subject, (), "2.13.0+cpu", "cpu", message, date="2026-05-01T12:00:00Z"),
    )


def sfdp(number: int, kind: MechanismKind = M.CONSTANTS_IGNORED, error: str = "") -> RootCause:
    return cause("inductor", "joint_graph_passes", f"_sfdp_pattern_{number}", kind, details(error=error))


def cause(who: str, stage: str, part: str, kind: MechanismKind, given: Details = ()) -> RootCause:
    return RootCause(who, Stage(stage), part, Mechanism(kind, given))


def measured(number: int, operand: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> RootCause:
    proven = WrongRewrite(f"_sfdp_pattern_{number}", {operand: right}, {operand: wrong})
    return replace(sfdp(number, M.OPERANDS), rewrites=(proven,))


MIXED = ("all 1", "one 0 in 1", "one 1 in 0")
INDEX_ERROR, DIFFERS = "IndexError: list index out of range", "RuntimeError: metadata differs"
RANK_ERROR = "IndexError: Dimension out of range"
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
BACKWARD, OF_MASK = "attention_backward", details(value="dq", options=["mask"])
#: Findings of torch 2.13.0 and of kernels, those of one root cause in one row.
PILE = [
    [(sfdp(1), entry()), (sfdp(14), entry(3)), (sfdp(5), entry(4, "metadata")), (sfdp(22), entry(5, "compile_error"))],
    [(measured(15, "attn_mask", MIXED, ("all -1", "all 2")), entry()),
     (measured(20, "attn_mask", MIXED, ("all -1", "all 2", "all 0.5", "one 0.5 in 1")), entry(3))],
    [(measured(25, "attn_mask", ("all 1",), ("all 0", *MIXED[1:])), entry())],
    [(measured(18, "causal_mask", MIXED[:2], ("all 0", MIXED[2])), entry()),
     (measured(19, "causal_mask", MIXED[:2], ("all 0", MIXED[2])), entry(3))],
    [(measured(19, "causal_mask", MIXED[:1], ("all 0",)), entry())],
    [(measured(8, "query", MIXED[:1], ()), entry()), (measured(8, "query", ("all 1", "all 0"), ()), entry(3))],
    [(measured(7, "query", MIXED[:1], ()), entry())],
    [(sfdp(18, M.COMPILING_RAISES, RANK_ERROR), entry()),
     (sfdp(21, M.COMPILING_RAISES, RANK_ERROR), entry(3, "compile_error"))],
    [(sfdp(14, M.COMPILING_RAISES, INDEX_ERROR), entry()), (sfdp(5, M.COMPILING_RAISES, INDEX_ERROR), entry(3))],
    [(sfdp(7, M.OTHER_RESULT), entry())],
    [(sfdp(8, M.OTHER_RESULT), entry())],
    [(sfdp(7, M.RUNNING_RAISES, DIFFERS), entry()), (sfdp(8, M.RUNNING_RAISES, DIFFERS), entry(3))],
    [(sfdp(7, M.WORKER_DIED), entry(2, "worker_died"))],
    [(sfdp(8, M.WORKER_DIED), entry(2, "worker_died"))],
    [(sfdp(7, M.STRIDES), entry(2, "metadata")), (sfdp(8, M.STRIDES), entry(3, "metadata"))],
    [(cause("inductor", "lowering", "relu", M.WRONG_RESULT), entry())],
    [(cause("inductor", "lowering", "log1p", M.WRONG_RESULT), entry())],
    [(cause("eager", "operation", FLASH, M.NEGATIVE_SCALE), entry(2, "eager_suspect", "eager")),
     (cause("sdpa_flash", "operation", FLASH, M.NEGATIVE_SCALE), entry(3, "nonfinite", "sdpa_flash"))],
    [(cause("sdpa_flash", "operation", FLASH, M.OVERLAPPING_ROWS), entry(2, "wrong_result", "sdpa_flash"))],
    [(cause("eager", "operation", "aten.bmm", M.NOT_FINITE), entry(2, "eager_suspect", "eager"))],
    [(cause("eager", "operation", "aten.bmm", M.WRONG), entry(2, "eager_suspect", "eager"))],
    [(cause("triton", "kernel", BACKWARD, M.WRONG_VALUES, OF_MASK), entry(2, "wrong_gradient", "triton"))],
    [(cause("triton", "kernel", BACKWARD, M.WRITES, OF_MASK), entry(2, "out_of_bounds", "triton"))],
    [(cause("triton", "kernel", "attention_forward", M.WRONG_VALUES), entry(2, "wrong_result", "triton"))],
]  # fmt: skip


def told(number: int, cause: RootCause, one: Entry, day: str = "2026-05-01") -> Attributed:
    unique = replace(one, case=replace(one.case, dims=(("R", 2 + number), ("S", 5))))
    finding = Finding(unique, Path(f"{number}.case.yaml"), None, 1, day, day, frozenset(["2.13.0"]))
    return Attributed(finding, cause.key, cause)


MEMBERS = [told(100 * row + i, *pair) for row, findings in enumerate(PILE) for i, pair in enumerate(findings)]


def ids(clusters: list[Cluster]) -> set[frozenset[str]]:
    return {frozenset(finding.id for finding in one.findings) for one in clusters}


def test_findings_are_one_cluster_exactly_where_one_change_would_mend_them() -> None:
    expected = {
        frozenset(told(100 * row + i, *pair).finding.id for i, pair in enumerate(findings))
        for row, findings in enumerate(PILE)
    }
    assert ids(cluster(MEMBERS, EMPTY)) == expected


_OLD_KEY = CauseKey("inductor", Stage.CODEGEN, "", M.OTHER_RESULT)
LISTED = Ledger(
    Path("ledger.yaml"),
    (
        Bug(
            "b",
            "the matcher ignores constants",
            Status("reported", "https://x"),
            cause=MEMBERS[0].key,
            decided_by=(),
            also=(MEMBERS[-1].key,),
        ),
        Bug(
            "a",
            "words were others then",
            cause=_OLD_KEY,
            decided_by=(),
            findings=(MEMBERS[4].finding.id, MEMBERS[6].finding.id),
        ),
    ),
)


@given(st.permutations(MEMBERS), st.sampled_from([EMPTY, LISTED]))
def test_the_order_of_findings_says_nothing(members: list[Attributed], known: Ledger) -> None:
    assert cluster(members, known) == cluster(MEMBERS, known)


@given(st.sets(st.sampled_from(range(len(MEMBERS)))), st.sampled_from([EMPTY, Ledger(LISTED.path, LISTED.bugs[:1])]))
def test_a_finding_that_joins_changes_no_title_and_moves_no_other(without: set[int], known: Ledger) -> None:
    fewer = cluster([member for number, member in enumerate(MEMBERS) if number not in without], known)
    full = cluster(MEMBERS, known)
    of = {finding.id: one for one in full for finding in one.findings}
    for one in fewer:
        assert {of[finding.id].updated.title for finding in one.findings} == {one.updated.title}
    assert len({of[one.example.id].example.id for one in fewer}) == len(fewer)


def test_a_person_joins_in_the_ledger_what_the_rule_tells_apart() -> None:
    joined = next(one for one in cluster(MEMBERS, LISTED) if one.bug and one.bug.id == "b")
    assert {m.key for m in joined.members} == {MEMBERS[0].key, MEMBERS[-1].key}
    assert (joined.updated.title, joined.is_news) == ("the matcher ignores constants", False)


def test_a_title_says_what_shows() -> None:
    clusters = cluster(MEMBERS, EMPTY)
    titles = [one.updated.title for one in clusters]
    assert len({(one.updated.title, one.updated.causes[0].right) for one in clusters}) == len(PILE)
    for words in (
        "[Inductor] patterns of attention: constants of the program ignored",
        "[Inductor] patterns of attention: compiling raises IndexError: list index out of range",
        "[Inductor] _sfdp_pattern_7: the replacement computes something else",
        "[Inductor] relu: wrong result",
        f"eager {FLASH}: a negative scale",
        "triton attention_forward: wrong values",
    ):
        assert words in titles


def test_a_ledger_brought_up_to_date_twice_is_the_same_and_lists_each_finding_once() -> None:
    once = update_ledger(LISTED, cluster(MEMBERS, LISTED))
    assert update_ledger(once, cluster(MEMBERS, once)) == once
    listed = [case_id for bug in once.bugs for case_id in bug.findings]
    assert sorted(listed) == sorted({member.finding.id for member in MEMBERS})
    assert all(
        (bug.first_seen, bug.last_seen, bug.versions) == ("2026-05-01", "2026-05-01", ("2.13.0",)) for bug in once.bugs
    )
    assert all(one.bug for one in cluster(MEMBERS, once))
    later = told(999, sfdp(2), entry(9), "2026-06-01")
    (bug,) = [bug for bug in update_ledger(once, cluster([later], once)).bugs if bug.last_seen == "2026-06-01"]
    assert bug.id == "b" and bug.first_seen == "2026-05-01" and later.finding.id in bug.findings


def test_a_ledger_holds_what_was_measured(tmp_path: Path) -> None:
    members = [told(number, measured(15, "bias", MIXED, ("all 2",)), entry()) for number in (1, 2)]
    empty = Ledger(tmp_path / "ledger.yaml")
    clusters = cluster(members[:1], empty)
    record(empty, clusters)
    ((key,),) = [bug.causes for bug in ledger.load(empty.path).bugs]
    assert key == members[0].key
    assert (key.mechanism, dict(key.right), dict(key.wrong)) == (M.OPERANDS, {"bias": MIXED}, {"bias": ("all 2",)})
    assert str(key.words) == "wrong for some values of bias"
    alike = told(3, measured(20, "bias", MIXED, ("all -1", "all 2")), entry())
    assert [bool(one.bug) for one in cluster([alike], ledger.load(empty.path))] == [True]


def test_an_entry_keeps_its_findings_where_it_lacks_their_cause(tmp_path: Path) -> None:
    (listed, *_) = members = [told(number, measured(15, "bias", MIXED, ("all 2",)), entry()) for number in (1, 2)]
    key = CauseKey("inductor", Stage.JOINT_PASSES, Part.ATTENTION_PATTERNS, M.OTHER_RESULT)
    ledger.save(
        Ledger(tmp_path / "old.yaml", (Bug("old", "wrong", cause=key, decided_by=(), findings=(listed.finding.id,)),))
    )
    old = ledger.load(tmp_path / "old.yaml")
    (one,) = cluster(members, old)
    assert one.bug == old.bugs[0] and len(one.findings) == 2


def test_nothing_is_written_beside_what_is_no_ledger(tmp_path: Path) -> None:
    clusters = cluster(MEMBERS[:1], EMPTY)
    (tmp_path / "device").mkdir()
    with pytest.raises(UserError, match="not a regular file"):
        record(Ledger(tmp_path / "device"), clusters)
    assert [path.name for path in tmp_path.iterdir()] == ["device"]


def test_an_example_is_given_to_what_is_added_and_to_no_entry_of_a_persons(tmp_path: Path) -> None:
    """By an example that the ledger does not list a bug would be known to campaigns, and replayed by every pytest."""
    bare = Ledger(
        tmp_path / "ledger.yaml", (Bug("bare", "seen on other processors alone", cause=MEMBERS[0].key, decided_by=()),)
    )
    ledger.save(bare)
    clusters = cluster(MEMBERS[:6], bare)
    made = record(bare, clusters)
    assert made == ledger.load(bare.path)
    assert [len(bug.cases) for bug in made.bugs] == [0, 1]
    assert made.bugs[0].findings
    assert [path.name for path in (tmp_path / "known").iterdir()] == [Path(made.bugs[1].cases[0]).name]


def test_an_entry_learns_the_cause_its_findings_are_attributed_to_now(tmp_path: Path) -> None:
    path = tmp_path / "ledger.yaml"
    first, second = MEMBERS[0], told(1, sfdp(1), entry(3))
    bug = Bug("old", "attention is wrong", cause=_OLD_KEY, decided_by=(), findings=(first.finding.id,))
    ledger.save(Ledger(path, (bug, Bug("other", "NaN", cause=MEMBERS[-1].key, decided_by=()))))
    before = ledger.load(path)
    clusters = cluster([first], before)
    record(before, clusters)
    after = ledger.load(path)
    assert [one.causes for one in after.bugs] == [(bug.cause, first.key), (MEMBERS[-1].key,)]
    # So what is met next is the same bug, not a second entry.
    (one,) = cluster([second], after)
    assert one.bug == after.bugs[0]
