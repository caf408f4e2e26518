"""The experiments that decide whether a failure is a known bug."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from corpus.causes import Details, Mechanism, MechanismKind, Stage
from corpus.entry import Entry, Expectation
from fuzz.attribution.decide import decides, find_deciding
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from fuzz.experiments import Trial
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.rewrites import WrongRewrite
from generators.program.case import Case
from generators.program.type_check import attributes, make_op
from tests.campaign.fakes import case
from tests.triage.fake_evaluator import FakeEvaluator

Fails = Callable[[Case, str, tuple[Trial, ...]], bool]
WRONG = SubjectResult("passes", Verdict.WRONG_RESULT)
PASS = (("pass", ("fold",)),)


class RuledEvaluator(FakeEvaluator):
    """A case fails if the rule says so."""

    def __init__(self, fails: Fails) -> None:
        super().__init__(WRONG)
        self.fails = fails

    def judge(self, case: Case, subject: str, *trials: Trial) -> SubjectResult:
        return SubjectResult(subject, Verdict.WRONG_RESULT if self.fails(case, subject, trials) else Verdict.OK)


def study(fails: Fails, failing: Case, result: SubjectResult = WRONG) -> Study:
    evaluator: Any = RuledEvaluator(fails)
    return Study(evaluator, Entry(failing, expect=Expectation("known", subject=result.subject)), result.subject, result)


def has(kind: str) -> Callable[[Case], bool]:
    return lambda one: kind in {op.kind for op in one.ops}


def test_a_step_that_is_left_out_by_name_decides() -> None:
    mine = study(lambda _case, _subject, trials: Trial("pass", "fold") not in trials, case("relu"))
    others = study(lambda _case, _subject, _trials: True, case("relu"))
    assert decides(PASS, mine) and not decides(PASS, others)
    assert not decides((), mine)


def test_each_row_must_flip_and_of_its_arguments_any() -> None:
    decided_by: Details = (("dropped", ("log", "relu")), ("passes", ()))
    relu, other = has("relu"), has("exp")
    assert decides(decided_by, study(lambda one, _subject, _trials: relu(one), case("relu", "exp")))
    assert not decides(decided_by, study(lambda one, _subject, _trials: other(one), case("relu", "exp")))
    in_code = SubjectResult("inductor", Verdict.WRONG_RESULT)
    generated = study(lambda one, subject, _: relu(one) and subject == "inductor", case("relu", "exp"), in_code)
    assert not decides(decided_by, generated)


def test_a_failure_that_does_not_repeat_is_not_known() -> None:
    assert not decides(PASS, study(lambda _case, _subject, _trials: False, case("relu")))


def test_measurements_must_be_equal() -> None:
    known = WrongRewrite("_sfdp_pattern_15", {"attn_mask": ("all 1",)}, {"attn_mask": ("all 0",)})
    other = WrongRewrite("_sfdp_pattern_15", {"attn_mask": ("all 0",)}, {"attn_mask": ("all 1",)})
    for measured, is_it in (((known,), True), ((other,), False), ((), False)):
        result = SubjectResult("passes", Verdict.WRONG_RESULT, wrong_rewrites=measured)
        assert decides((("exact", ()),), study(lambda *_: True, case("relu"), result), (known,)) is is_it


def test_the_experiments_of_a_cause_flip_on_its_minimal_case() -> None:
    step = RootCause("inductor", Stage.GRAPH_PASSES, "fold", Mechanism(MechanismKind.WRONG_RESULT))
    assert find_deciding(study(lambda *_: True, case("relu")), step) == PASS
    stage = RootCause("aot", Stage.DYNAMO, "", Mechanism(MechanismKind.OTHER_VALUES))
    relu = has("relu")
    found = find_deciding(study(lambda one, _subject, _trials: relu(one), case("exp", "relu", "exp")), stage)
    assert found == (("aot_eager", ()), ("dropped", ("relu",)))
    assert find_deciding(study(lambda *_: True, case("exp", "relu")), stage) == ()
    copied = study(
        lambda one, _subject, _trials: not has("clone")(one), case("relu"), replace(WRONG, verdict=Verdict.METADATA)
    )
    assert find_deciding(copied, stage) == (("aot_eager", ()), ("contiguous", ("relu",)))


def test_an_offset_of_0_decides_between_bugs_of_as_strided() -> None:
    read = make_op("out", "as_strided", ["x"], {"sizes": (1,), "strides": (1,)})
    strided = replace(case(), ops=(read,), returns=("out",))
    mine = study(lambda one, _subject, _trials: attributes(one.ops[0])["offset"] is None, strided)
    others = study(lambda _case, _subject, _trials: True, strided)
    decided_by: Details = (("offset_given", ()),)
    assert decides(decided_by, mine) and not decides(decided_by, others)
