from dataclasses import replace
from pathlib import Path

import pytest

from corpus import entry as corpus_entry
from corpus import ledger
from corpus.causes import CauseKey, MechanismKind, Stage, details
from corpus.ledger import Bug, Ledger, Status
from corpus.upstream import Issue, Upstream
from generators.errors import UserError
from tests.corpus.test_mistakes import GROUPS

HAND_WRITTEN: str = GROUPS["ledger"]["text"]
ROOT = CauseKey("eager", Stage.OPERATION, "aten.bmm", MechanismKind.NOT_FINITE)
BMM = Bug("bmm", "aten.bmm: NaN", cause=ROOT, decided_by=())


def written(path: Path, text: str) -> Ledger:
    path.write_text(text)
    return ledger.load(path)


def test_what_a_person_wrote_stays_when_it_is_brought_up_to_date(tmp_path: Path) -> None:
    read = written(tmp_path / "ledger.yaml", HAND_WRITTEN)
    (bug,) = read.bugs
    assert str(bug.status) == "reported https://github.com/pytorch/pytorch/issues/1"
    assert read.find_cause(CauseKey("inductor", Stage.JOINT_PASSES, "", MechanismKind.WRONG)) == bug
    assert read.examples(bug) == [tmp_path / "known/constants.case.yaml"]
    met = Bug(bug.id, "a machine's title", cause=bug.cause, decided_by=())
    met = replace(met, findings=("0" * 12, "3a0969d8f021"), first_seen="2026-11-01", last_seen="2026-11-21")
    met = replace(met, versions=("2.13.0", "2.14"))
    ledger.save(Ledger(read.path, (met, replace(BMM, findings=("1" * 12,)))))
    text = read.path.read_text()
    assert text.startswith("# Reviewed every Monday.\nledger_format: 3\n")
    again = ledger.load(read.path)
    assert again.bugs[0] == replace(
        bug, findings=met.findings, first_seen="2026-11-01", last_seen="2026-11-21", versions=met.versions
    )
    assert again.bugs[1] == replace(BMM, findings=("1" * 12,))
    # And nothing changes where there is nothing to say.
    ledger.save(again)
    assert read.path.read_text() == text


def test_entries_that_do_not_change_stay_byte_for_byte(tmp_path: Path) -> None:
    read = written(tmp_path / "ledger.yaml", HAND_WRITTEN)
    ledger.save(Ledger(read.path, (*read.bugs, BMM)))
    assert read.path.read_text().startswith(HAND_WRITTEN)
    assert len(ledger.load(read.path).bugs) == 2


def test_a_bug_is_open_until_somebody_decides_here_or_upstream() -> None:
    related, same = Issue("pytorch#1", "related", "open"), Issue("pytorch#2", "same", "open")
    searches = [None, Upstream("2026-09"), Upstream("2026-09", (related,)), Upstream("2026-09", (related, same))]
    found = [replace(BMM, upstream=one) for one in searches]
    assert [one.is_open for one in found] == [True, True, True, False]
    assert len({one.standing for one in found}) == len(found)  # not searched is not the same as not found
    assert not replace(BMM, status=Status("set_apart", "deprecated")).is_open
    assert (same.url, Issue("a/b#3", "same", "open").url) == (
        "https://github.com/pytorch/pytorch/issues/2",
        "https://github.com/a/b/issues/3",
    )


def test_the_last_finding_of_a_bug_may_move_to_another(tmp_path: Path) -> None:
    read = written(tmp_path / "ledger.yaml", HAND_WRITTEN)
    (bug,) = read.bugs
    ledger.save(Ledger(read.path, (replace(bug, findings=()), replace(BMM, findings=bug.findings))))
    again = ledger.load(read.path)
    assert [one.findings for one in again.bugs] == [(), bug.findings]
    assert again.bugs[0].last_seen == bug.last_seen and again.bugs[0].versions == bug.versions


def test_a_ledger_is_made_where_there_is_none(tmp_path: Path) -> None:
    odd = Bug(
        "no",
        "a title: with #, 'quotes' and \"more\"",
        Status("not_a_bug", "no: by design"),
        cause=CauseKey("triton", Stage.KERNEL, "", MechanismKind.COMPILING_RAISES, details(error="1e-3")),
        decided_by=(("exact", ()), ("pass", ("one", "two"))),
    )
    made = Ledger(tmp_path / "new" / "ledger.yaml", (odd,))
    ledger.save(made)
    assert ledger.load(made.path) == made


def test_a_ledger_that_cant_be_read_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.yaml"
    path.write_text("ledger_format: 3\nbugs: [&a b]\n")
    with pytest.raises(UserError, match="anchors and aliases are not allowed"):
        ledger.save(Ledger(path, (BMM,)))
    assert path.read_text() == "ledger_format: 3\nbugs: [&a b]\n"
    with pytest.raises(UserError, match="can't be read: No such file"):
        ledger.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("status", "torch", "back"),
    [
        ("fixed 2.14.0", "2.14.0+cpu", True),
        ("fixed 2.14.0", "2.15.0.dev20261101+cu128", True),
        ("fixed 2.14.0", "2.14.0.dev20261101", False),
        ("fixed 2.14.0.dev20261015", "2.14.0.dev20261101", True),
        ("fixed 2.14.0", "2.13.1", False),
        ("reported https://x", "2.14.0", False),
        ("fixed openvino 2026.4", "2.14.0", True),
        ("fixed openvino 2026.5", "2.14.0", False),
        ("fixed onnxruntime 1.0", "2.14.0", False),
    ],
)
def test_a_fixed_bug_is_back_in_its_version_or_a_later_one(status: str, torch: str, back: bool) -> None:
    kind, _, about = status.partition(" ")
    assert Status(kind, about).is_back_in({"torch": torch, "openvino": "2026.4.1"}) is back


def test_every_example_of_our_own_ledger_is_listed_as_a_finding_of_its_bug() -> None:
    ours = ledger.load(ledger.LEDGER)
    for bug in ours.bugs:
        for path in ours.examples(bug):
            assert ours.find_case(corpus_entry.load(path).case.id) == bug, path
