"""Campaigns whose question is another: what is wrong in eager, and what regressed since another torch version."""

import math
from pathlib import Path
from typing import Any

import pytest

from fuzz.bug_identity import Symptom, is_same_failure
from fuzz.campaign.session import run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, Value
from generators.errors import UserError
from generators.records import encode
from tests.campaign.fakes import case, events, options, raised, sampler, setup
from tests.campaign.test_campaign import WRONG, found, rows

FAULTY = FaultyOperation("aten.softmax", math.nan, 0.31, Value("output", 0), math.inf)


def suspect(failure: FaultyOperation = FAULTY, subject: str = "passes", fired: tuple[str, ...] = ()) -> SubjectResult:
    return SubjectResult(subject, Verdict.EAGER_SUSPECT, failure=failure, applied_rewrites=fired)


@pytest.mark.worker
def test_it_is_one_finding_under_eager_whoever_met_it_and_whatever_same_says(tmp_path: Path) -> None:
    subjects = ["eager", "passes", "inductor"]
    rule = {
        "match": "softmax",
        "verdict": "eager_suspect",
        "failure": encode(FAULTY),
        "dynamo_same": True,
        "subjects": subjects,
    }
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


@pytest.mark.worker
def test_what_eager_alone_does_not_show_is_no_finding(tmp_path: Path) -> None:
    rule = {
        "match": "softmax",
        "verdict": "eager_suspect",
        "failure": encode(FAULTY),
        "subjects": ["passes", "inductor"],
    }
    given = options(tmp_path, rules=[rule])
    assert run_campaign(given, sampler("softmax")).new == 0


@pytest.mark.worker
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


@pytest.mark.worker
def test_who_asks_about_a_function_alone_is_told_of_eager_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "my.kernels:attention"
    rule = {"match": "softmax", "verdict": "eager_suspect", "failure": encode(FAULTY), "subjects": ["eager", name]}
    given = options(tmp_path, subjects=(name,), worker_config=setup(rules=[rule], subjects=[name]))
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == 0
    assert len(found(given)) == 1
    assert f" aten.softmax: {given.corpus}" in " ".join(ending.summary.split())
    assert "no new finding in" in ending.summary
    told = capsys.readouterr().out.removesuffix(f"{ending.summary}\n").split()
    assert Path(told[-1]).parent == given.corpus


OLD = "2.12.1"


def given(tmp_path: Path, rules: list[dict[str, Any]], before: list[dict[str, Any]], **more: Any) -> Any:
    return options(tmp_path, rules=rules, against=setup(rules=before, torch=OLD), **more)


@pytest.mark.worker
def test_what_fails_in_this_version_alone_is_a_finding_with_what_the_other_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(tmp_path, [WRONG], [])
    assert run_campaign(asked, sampler("softmax")).new == 1
    (entry,) = found(asked)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert entry.seen == {OLD: "ok"}
    assert entry.note == f"rewrites in this version, not in {OLD}: _sfdp_pattern_5_inference"
    assert f"a regression: torch {OLD} says ok" in capsys.readouterr().out
    assert [event["against"] for event in events(asked.out, "CampaignStarted")] == [OLD]


@pytest.mark.worker
def test_what_fails_in_both_is_set_aside_and_kept(tmp_path: Path) -> None:
    asked = given(tmp_path, [WRONG], [WRONG])
    assert run_campaign(asked, sampler("softmax")).new == 0 and found(asked) == []
    findings, outcomes = rows(asked)
    assert findings == [] and set(outcomes) == {"in_both"} and outcomes["in_both"] == 20
    closed = events(asked.out, "SuspicionClosed")
    assert {event["message"] for event in closed} == {f"also in torch {OLD}: wrong_result under passes"}


@pytest.mark.worker
def test_a_case_is_not_shrunk_to_one_that_fails_in_both(tmp_path: Path) -> None:
    # Without its ReLU a case fails in the old version too.
    right = {"match": r"relu\(", "verdict": "ok"}
    asked = given(tmp_path, [WRONG], [right, WRONG], budget="4x")
    assert run_campaign(asked, lambda seed, index, **_: case("exp", "relu", "tanh", "softmax", "sin")).new == 1
    (entry,) = found(asked)
    assert sorted(op.kind for op in entry.case.ops) == ["relu", "softmax"]


@pytest.mark.worker
def test_a_bug_of_both_does_not_hide_a_regression_of_its_kind(tmp_path: Path) -> None:
    old = {**WRONG, "match": "relu"}
    asked = given(tmp_path, [WRONG, old], [old])
    assert run_campaign(asked, sampler("relu", "softmax")).new == 1
    (entry,) = found(asked)
    assert [op.kind for op in entry.case.ops] == ["softmax"]


@pytest.mark.worker
def test_what_only_the_public_subject_shows_in_both_is_no_regression(tmp_path: Path) -> None:
    asked = given(tmp_path, [WRONG], [{**WRONG, "subjects": ["inductor"]}])
    assert run_campaign(asked, sampler("softmax")).new == 0
    assert set(rows(asked)[1]) == {"in_both"}


@pytest.mark.worker
def test_what_the_other_version_cant_judge_is_told_apart(tmp_path: Path) -> None:
    refuses = {"match": "softmax", "subjects": ["eager"], "rejected": "no such operator"}
    asked = given(tmp_path, [WRONG], [refuses])
    assert run_campaign(asked, sampler("softmax")).new == 0
    assert set(rows(asked)[1]) == {"not_compared"}


@pytest.mark.worker
def test_the_death_of_the_other_version_says_nothing_of_the_case(tmp_path: Path) -> None:
    asked = given(tmp_path, [WRONG], [{"match": "softmax", "subjects": ["passes"], "do": "die"}], budget="4x")
    assert run_campaign(asked, sampler("softmax")).new == 0
    assert set(rows(asked)[1]) == {"not_compared"}


@pytest.mark.worker
def test_what_raised_and_is_silently_wrong_now_got_worse(tmp_path: Path) -> None:
    raises = {"match": "softmax", "verdict": "compile_error", "failure": raised("KeyError", "buf0")}
    asked = given(tmp_path, [WRONG], [raises])
    assert run_campaign(asked, sampler("softmax")).new == 1


@pytest.mark.worker
def test_a_run_goes_on_with_the_version_it_began_with(tmp_path: Path) -> None:
    run_campaign(given(tmp_path, [], [], budget="2x"), sampler())
    with pytest.raises(UserError, match=r"holds a run with --against torch 2\.12\.1"):
        run_campaign(options(tmp_path, budget="2x"), sampler())


@pytest.mark.worker
def test_an_interpreter_that_cant_be_used_is_told_before_any_work(tmp_path: Path) -> None:
    asked = options(tmp_path, against=setup(unusable="/usr/bin/python3 can't import torch"))
    with pytest.raises(UserError, match="can't import torch"):
        run_campaign(asked, sampler("softmax"))
    assert not (tmp_path / "run").exists()
