"""Eager as the side that is wrong, in a campaign."""

import math
from pathlib import Path

import pytest

from fuzz.bug_identity import Symptom, is_same_failure
from fuzz.campaign.session import run_campaign
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import FaultyOperation, Value
from generators.records import encode
from tests.campaign.fakes import options, sampler, setup
from tests.campaign.test_campaign import events, found, rows

pytestmark = pytest.mark.worker

FAULTY = FaultyOperation("aten.softmax", math.nan, 0.31, Value("output", 0), math.inf)


def suspect(failure: FaultyOperation = FAULTY, subject: str = "passes", fired: tuple[str, ...] = ()) -> SubjectResult:
    return SubjectResult(subject, Verdict.EAGER_SUSPECT, failure=failure, applied_rewrites=fired)


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
    assert len(events(given, "SuspicionClosed")) == 1


def test_what_eager_alone_does_not_show_is_no_finding(tmp_path: Path) -> None:
    rule = {
        "match": "softmax",
        "verdict": "eager_suspect",
        "failure": encode(FAULTY),
        "subjects": ["passes", "inductor"],
    }
    given = options(tmp_path, rules=[rule])
    assert run_campaign(given, sampler("softmax")).new == 0


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
    rule = {"match": "softmax", "verdict": "eager_suspect", "failure": encode(FAULTY), "subjects": ["eager", name]}
    given = options(tmp_path, subjects=(name,), worker_config=setup(rules=[rule], subjects=[name]))
    ending = run_campaign(given, sampler("softmax"))
    assert ending.new == 0
    assert len(found(given)) == 1
    assert f" aten.softmax: {given.corpus}" in " ".join(ending.summary.split())
    assert "no new finding in" in ending.summary
    told = capsys.readouterr().out.removesuffix(f"{ending.summary}\n").split()
    assert Path(told[-1]).parent == given.corpus
