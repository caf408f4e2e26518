"""Eager as the side that is wrong, in a campaign."""

from pathlib import Path

from fuzz.campaign.investigate import alike
from fuzz.campaign.session import session
from fuzz.campaign.symptom import Symptom
from fuzz.protocol import SubjectResult, Verdict
from tests.campaign.fakes import options, sampler, setup
from tests.campaign.test_campaign import events, found, rows

MESSAGE = "aten.softmax gives nan where float64 gives 0.31: eager's output 0 is not finite; this subject's is wrong too"


def suspect(message: str = MESSAGE, subject: str = "passes", fired: tuple[str, ...] = ()) -> SubjectResult:
    return SubjectResult(subject, Verdict.EAGER_SUSPECT, message, fired=fired)


def test_it_is_one_finding_under_eager_whoever_met_it_and_whatever_same_says(tmp_path: Path) -> None:
    subjects = ["eager", "passes", "inductor"]
    rule = {"match": "softmax", "verdict": "eager_suspect", "message": MESSAGE, "same": True, "subjects": subjects}
    given = options(tmp_path, rules=[rule])
    assert session(given, sampler("softmax")).new == 1
    (entry,) = found(given)
    assert [op.kind for op in entry.case.ops] == ["softmax"]
    assert entry.found is not None
    assert (entry.found.verdict, entry.found.subject) == ("eager_suspect", "eager")
    assert entry.expectation.verdict == "eager_suspect" and entry.subject == "eager"
    ((finding,), _) = rows(given)
    assert finding.count == 20
    assert len(events(given, "SuspicionOpened")) == 1


def test_what_eager_alone_does_not_show_is_no_finding(tmp_path: Path) -> None:
    rule = {"match": "softmax", "verdict": "eager_suspect", "message": MESSAGE, "subjects": ["passes", "inductor"]}
    given = options(tmp_path, rules=[rule])
    assert session(given, sampler("softmax")).new == 0


def test_the_guilty_operation_tells_one_from_another() -> None:
    minimal = Symptom.of(suspect(fired=("_sfdp_pattern_5_inference",)), frozenset(["op:softmax"]))
    met = suspect("aten.softmax gives -inf where float64 gives 0.2: eager's output 1 is not finite", "inductor")
    wrong = suspect(
        "aten.softmax gives 3 where float64 gives 0.2: eager's output 1 is off by 2.8 from float64", "inductor"
    )
    other = suspect("aten.bmm gives nan where float64 gives 0.31: eager's output 0 is not finite")
    features = frozenset(["op:exp"])
    # Whatever leads to it.
    assert minimal.explains(Symptom.of(met, features))
    assert not minimal.explains(Symptom.of(wrong, features))
    assert not minimal.explains(Symptom.of(other, features))
    assert not minimal.explains(Symptom.of(SubjectResult("passes", Verdict.NONFINITE, MESSAGE), features))
    assert alike(met, suspect(fired=("_sfdp_pattern_5_inference",)), exact=True)
    assert not alike(other, suspect(), exact=True) and not alike(wrong, suspect(), exact=True)


def test_who_asks_about_a_function_alone_is_told_of_eager_apart(tmp_path: Path) -> None:
    name = "my.kernels:attention"
    rule = {"match": "softmax", "verdict": "eager_suspect", "message": MESSAGE, "subjects": ["eager", name]}
    given = options(tmp_path, subjects=(name,), setup=setup(rules=[rule], subjects=[name]))
    ending = session(given, sampler("softmax"))
    assert ending.new == 0
    assert len(found(given)) == 1
    assert "1 mistake of torch's own eager mode, met on the way and saved; yours has no part in them:" in ending.summary
    assert "0 findings in" in ending.summary
