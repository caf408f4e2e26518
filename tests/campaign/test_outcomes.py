"""What becomes of failures: findings, and what is none; also of campaigns about eager, and about regressions."""

import math
from pathlib import Path
from typing import Any

import pytest

from fuzz.bug_identity import Symptom, is_same_failure
from fuzz.campaign.options import StopReason
from fuzz.campaign.session import Sampler, run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, Value
from generators.errors import UserError
from generators.records import encode
from tests.campaign.fakes import case, events, options, raised, sampler, setup
from tests.campaign.test_campaign import WRONG, found, rows

pytestmark = pytest.mark.worker
OLD = "2.12.1"


def raising(match: str, error: str, text: str) -> dict[str, Any]:
    """A rule for programs that raise."""
    return {"match": match, "verdict": "compile_error", "failure": raised(error, text)}


def before(*rules: dict[str, Any]) -> dict[str, Any]:
    """Options of a campaign that asks about regressions from a version that answers by `rules`."""
    return {"against": setup(rules=rules, torch=OLD)}


SOFTMAX, KEPT = sampler("softmax"), {"finding", "duplicate"}
NO_SPACE = raising("softmax", "OSError", "[Errno 28] No space left on device")
FAULTY = FaultyOperation("aten.softmax", math.nan, 0.31, Value("output", 0), math.inf)
SUSPECT = {
    "match": "softmax",
    "verdict": "eager_suspect",
    "failure": encode(FAULTY),
    "subjects": ["passes", "inductor"],
}


@pytest.mark.parametrize(
    ("rules", "draw", "more", "kinds", "outcomes"),
    [
        # Different bugs are different findings.
        (
            [WRONG, raising("relu", "KeyError", "buf7"), raising("log\\(", "AssertionError", "no layout")],
            sampler("softmax", "relu", "log"),
            {"budget": "60x"},
            ["log", "relu", "softmax"],
            KEPT,
        ),
        # No finding: what no public subject shows, what PyTorch's own check accepts, what eager alone does not show.
        ([{**WRONG, "subjects": ["passes"]}], SOFTMAX, {}, [], {"internal_only"}),
        ([{**WRONG, "dynamo_same": True}], SOFTMAX, {}, [], {"within_same"}),
        ([SUSPECT], SOFTMAX, {}, [], {"internal_only"}),
        # A program that says that the disk is full is a finding as any other.
        ([NO_SPACE], SOFTMAX, {}, ["softmax"], KEPT),
        # A bug of both versions does not hide a regression of its kind.
        (
            [WRONG, {**WRONG, "match": "relu"}],
            sampler("relu", "softmax"),
            before({**WRONG, "match": "relu"}),
            ["softmax"],
            KEPT | {"in_both"},
        ),
        # No regression: what the public subject alone shows in both, what the other version refuses or dies of.
        ([WRONG], SOFTMAX, before({**WRONG, "subjects": ["inductor"]}), [], {"in_both"}),
        (
            [WRONG],
            SOFTMAX,
            before({"match": "softmax", "subjects": ["eager"], "rejected": "no such operator"}),
            [],
            {"not_compared"},
        ),
        ([WRONG], SOFTMAX, before({"match": "softmax", "subjects": ["passes"], "do": "die"}), [], {"not_compared"}),
        # What raised and is silently wrong now got worse.
        ([WRONG], SOFTMAX, before(raising("softmax", "KeyError", "buf0")), ["softmax"], KEPT),
        # Without its ReLU a case fails in the old version too, so it keeps that.
        (
            [WRONG],
            lambda seed, index, **_: case("exp", "relu", "tanh", "softmax", "sin"),
            {**before({"match": r"relu\(", "verdict": "ok"}, WRONG), "budget": "4x"},
            ["relu softmax"],
            KEPT,
        ),
    ],
)
def test_what_is_found_and_what_becomes_of_the_rest(
    tmp_path: Path,
    rules: list[dict[str, Any]],
    draw: Sampler,
    more: dict[str, Any],
    kinds: list[str],
    outcomes: set[str],
) -> None:
    given = options(tmp_path, rules=rules, **more)
    assert run_campaign(given, draw).new == len(kinds)
    assert sorted(" ".join(sorted(op.kind for op in entry.case.ops)) for entry in found(given)) == kinds
    assert {*rows(given)[1]} == outcomes
    assert [event["reason"] for event in events(given.out, "CampaignEnded")] == [StopReason.BUDGET]


def suspect(failure: FaultyOperation = FAULTY, subject: str = "passes", fired: tuple[str, ...] = ()) -> SubjectResult:
    return SubjectResult(subject, Verdict.EAGER_SUSPECT, failure=failure, applied_rewrites=fired)


def test_it_is_one_finding_under_eager_whoever_met_it_and_whatever_same_says(tmp_path: Path) -> None:
    rule = {**SUSPECT, "dynamo_same": True, "subjects": ["eager", "passes", "inductor"]}
    given = options(tmp_path, rules=[rule])
    assert run_campaign(given, sampler("softmax")).new == 1
    (entry,) = found(given)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert entry.found is not None
    assert (entry.found.verdict, entry.found.subject) == ("eager_suspect", "eager")
    assert entry.expectation.verdict == "eager_suspect" and entry.subject == "eager"
    ((finding,), _) = rows(given)
    assert finding.count == 20
    assert len(events(given.out, "SuspicionClosed")) == 1


def test_the_guilty_operation_tells_one_from_another() -> None:
    minimal = Symptom.of(suspect(fired=("_sfdp_pattern_5_inference",)), frozenset(["op:softmax"]))
    met = suspect(FaultyOperation("aten.softmax", -math.inf, 0.2, Value("output", 1), math.inf), "inductor")
    wrong = suspect(FaultyOperation("aten.softmax", 3.0, 0.2, Value("output", 1), 2.8), "inductor")
    other = suspect(FaultyOperation("aten.bmm", math.nan, 0.31, Value("output", 0), math.inf))
    features = frozenset(["op:exp"])
    # Whatever leads to it.
    assert minimal.is_like(Symptom.of(met, features))
    assert not minimal.is_like(Symptom.of(wrong, features))
    assert not minimal.is_like(Symptom.of(other, features))
    assert not minimal.is_like(Symptom.of(SubjectResult("passes", Verdict.NONFINITE, failure=FAULTY), features))
    assert is_same_failure(met, suspect(fired=("_sfdp_pattern_5_inference",)), exact=True)
    assert not is_same_failure(other, suspect(), exact=True) and not is_same_failure(wrong, suspect(), exact=True)


def test_who_asks_about_a_function_alone_is_told_of_eager_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "my.kernels:attention"
    rule = {**SUSPECT, "subjects": ["eager", name]}
    given = options(tmp_path, subjects=(name,), worker_config=setup(rules=[rule], subjects=[name]))
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == 0
    assert len(found(given)) == 1
    assert f" aten.softmax: {given.corpus}" in " ".join(ending.summary.split())
    assert "no new finding in" in ending.summary
    told = capsys.readouterr().out.removesuffix(f"{ending.summary}\n").split()
    assert Path(told[-1]).parent == given.corpus


def test_what_fails_in_this_version_alone_is_a_finding_with_what_the_other_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = options(tmp_path, rules=[WRONG], **before())
    assert run_campaign(asked, sampler("softmax")).new == 1
    (entry,) = found(asked)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert entry.seen == {OLD: "ok"}
    assert entry.note == f"rewrites in this version, not in {OLD}: _sfdp_pattern_5_inference"
    assert f"a regression: torch {OLD} says ok" in capsys.readouterr().out
    assert [event["against"] for event in events(asked.out, "CampaignStarted")] == [OLD]


def test_what_fails_in_both_is_set_aside_and_kept(tmp_path: Path) -> None:
    asked = options(tmp_path, rules=[WRONG], **before(WRONG))
    assert run_campaign(asked, sampler("softmax")).new == 0 and found(asked) == []
    findings, outcomes = rows(asked)
    assert findings == [] and set(outcomes) == {"in_both"} and outcomes["in_both"] == 20
    closed = events(asked.out, "SuspicionClosed")
    assert {event["message"] for event in closed} == {f"also in torch {OLD}: wrong_result under passes"}


def test_a_run_goes_on_with_the_version_it_began_with(tmp_path: Path) -> None:
    run_campaign(options(tmp_path, budget="2x", **before()), sampler())
    with pytest.raises(UserError, match=r"holds a run with --against torch 2\.12\.1"):
        run_campaign(options(tmp_path, budget="2x"), sampler())


def test_an_interpreter_that_cant_be_used_is_told_before_any_work(tmp_path: Path) -> None:
    asked = options(tmp_path, against=setup(unusable="/usr/bin/python3 can't import torch"))
    with pytest.raises(UserError, match="can't import torch"):
        run_campaign(asked, sampler("softmax"))
    assert not (tmp_path / "run").exists()
