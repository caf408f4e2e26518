"""Parts of a report: the rows at its head, and the conditions of a finding, from judges whose rule is known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from corpus import casefile
from corpus.causes import CauseKey, MechanismKind, Stage
from corpus.entry import Entry, Expectation, load
from corpus.fault import FaultyLine
from corpus.ledger import Bug
from corpus.upstream import Issue, Upstream
from fuzz.ask.worker_config import ROOT
from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case, LaterCall
from generators.program.type_check import attributes
from triage.report.conditions import find_conditions
from triage.report.filing import (
    describe_releases,
    describe_upstream,
    propose_labels,
    render_facts,
    renew_head,
    replace_facts,
)
from triage.report.rules import Condition

WRONG = MechanismKind.WRONG_RESULT
SDPA = CauseKey("eager", Stage.OPERATION, "aten.scaled_dot_product_attention", WRONG)
OPEN = Issue("pytorch#1", "same", "open", "the first")


def failing(case: Case, verdict: str, seen: Mapping[str, str] = MappingProxyType({})) -> Entry:
    return Entry(case, expect=Expectation("known", subject="inductor", verdict=verdict), seen=seen)


@pytest.mark.parametrize(
    ("who", "stage", "part", "label"),
    [
        ("dynamo", Stage.DYNAMO, "", "module: dynamo"),
        ("aot", Stage.DYNAMO, "", "module: pt2-dispatcher"),
        ("aot", Stage.DECOMPOSITION, "aten.lerp", "module: pt2-dispatcher"),
        ("aot", Stage.DYNAMO, "torch_export", "oncall: export"),
        ("inductor", Stage.CODEGEN, "casts", "module: inductor"),
    ],
)
def test_the_first_stage_that_fails_names_the_owner(case: Case, who: str, stage: Stage, part: str, label: str) -> None:
    labels = propose_labels(failing(case, "compile_error"), CauseKey(who, stage, part, MechanismKind.COMPILING_RAISES))
    assert labels == ["oncall: pt2", label, "topic: fuzzer"]


def test_the_line_at_fault_names_its_owner_before_the_stage_that_fails(case: Case) -> None:
    cause, entry = CauseKey("aot", Stage.DYNAMO, "", WRONG), failing(case, "compile_error")
    layer = FaultyLine("nn/modules/transformer.py", 7, "forward", "2.15.0", "repair")
    assert propose_labels(entry, cause, layer) == ["module: nn", "topic: fuzzer"]
    assert propose_labels(entry, cause, replace(layer, file="_inductor/ir.py"))[:2] == [
        "oncall: pt2",
        "module: inductor",
    ]
    facts = render_facts("a bug", entry, cause, Bug("b", "a bug", cause=cause, decided_by=(), fault=layer))
    assert "(https://github.com/pytorch/pytorch/blob/v2.15.0/torch/nn/modules/transformer.py#L7)" in facts


def test_rules_of_sharding_are_for_those_of_dtensor(case: Case) -> None:
    cause = CauseKey("sharded", Stage.SHARDING, "aten.embedding", WRONG)
    assert propose_labels(failing(case, "compile_error"), cause) == [
        "oncall: distributed",
        "module: dtensor",
        "topic: fuzzer",
    ]


def test_operations_have_labels_without_a_cause() -> None:
    entry = load(ROOT / "corpus" / "known" / "flex-mask-by-head.case.yaml")
    assert propose_labels(entry, None) == ["topic: fuzzer", "module: flex attention"]


def test_silence_an_operation_of_eager_and_a_regression_have_labels_too(case: Case) -> None:
    assert propose_labels(failing(case, "wrong_result"), SDPA) == [
        "topic: fuzzer",
        "module: sdpa",
        "module: correctness (silent)",
    ]
    regressed = failing(case, "wrong_result", {"2.9": "ok", "2.10": "ok", "2.11": "wrong_result"})
    assert propose_labels(regressed, SDPA)[-1] == "module: regression"
    assert (
        describe_releases(regressed)
        == "fails in 2.11; right in 2.9, 2.10; a regression: last good 2.10, first bad 2.11"
    )


@pytest.mark.parametrize(
    "seen",
    [
        {"2.11.0": "wrong_result", "2.13.0": "wrong_result"},
        {"2.11.0": "wrong_result", "2.13.0": "ok"},  # gone
        {"2.11.0": "compile_error", "2.13.0": "wrong_result"},  # another failure is not right
    ],
)
def test_what_no_release_had_right_before_is_no_regression(case: Case, seen: dict[str, str]) -> None:
    assert "module: regression" not in propose_labels(failing(case, "wrong_result", seen), SDPA)


def test_not_searched_not_found_related_and_known_are_told_apart() -> None:
    bug = Bug("b", "a bug", cause=SDPA, decided_by=())
    found = (Issue("pytorch#2", "related", "unknown"), Issue("pytorch#3", "family", "closed"), OPEN)
    searches = [None, Upstream("2026-09"), Upstream("2026-09", found)]
    told = [describe_upstream(replace(bug, upstream=one)) for one in searches]
    link = "https://github.com/pytorch/pytorch/issues/"
    assert told == [
        "not searched for upstream",
        "not found upstream, searched 2026-09",
        (
            f"known upstream: [pytorch#1]({link}1) open (the first); same family: [pytorch#3]({link}3) closed; "
            f"see also: [pytorch#2]({link}2); looked up 2026-09"
        ),
    ]


def test_a_person_s_words_stay_where_the_rows_are_written_anew(case: Case) -> None:
    entry, bug = failing(case, "wrong_result"), Bug("b", "a | bug", cause=SDPA, decided_by=())
    facts = render_facts(bug.title, entry, bug.cause, bug)
    report = f"## Human note\n\nMine.\n\n{facts}\n### Describe the bug\n"
    known = replace(bug, upstream=Upstream("2026-09", (OPEN,)))
    head = "<!-- A draft; nothing was sent. {}\nYours. -->\n"
    told = renew_head(head.format("Search.") + report, entry, known)
    renewed = told.removeprefix(head.format("Add what is new here to pytorch#1, and open no other issue."))
    assert renewed != told and "not searched" not in renewed
    assert replace_facts(renewed, facts) == report
    assert replace_facts("no rows", facts) == "no rows"


FAILS = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_1_inference",))
RIGHT = SubjectResult("passes", Verdict.OK, applied_rewrites=("_sfdp_pattern_1_inference",))
MASKED = """
case_format: 1
dims: {B: 1, S: 33, T: 5}
inputs:
  x: {shape: [B, S, T], dtype: float32, values: {seed: 0}}
  mask: {shape: [S, T], dtype: float32, values: {kind: signed, seed: 1}}
ops:
  - {name: hidden, op: eq, args: [mask], other: 0}
  - {name: filled, op: masked_fill, args: [x, hidden]}
  - {name: out, op: dropout, args: [filled], p: 0.5}
returns: [out]
mode: training
"""


def explained(
    case: Case, fails: Callable[[Case], bool], *, rewrite: bool = False, passing: SubjectResult = RIGHT
) -> list[Condition]:
    return find_conditions(case, FAILS, lambda other: FAILS if fails(other) else passing, rewrite=rewrite)


def rules(case: Case, fails: Callable[[Case], bool]) -> list[str]:
    """The conditions without their examples, of a judge that must agree with the case."""
    assert fails(case)
    return [condition.rule.spell(condition.subject) for condition in explained(case, fails)]


def mask(case: Case) -> str:
    return next(item.values.kind for item in case.inputs if item.name == "mask")


def dropped(case: Case) -> float:
    return next(float(str(attributes(op)["p"])) for op in case.ops if op.kind == "dropout")


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda case: case.sizes["S"] > 32 and case.sizes["S"] % 16 != 0, ["S > 32 and S % 16 != 0"]),
        (lambda case: case.sizes["S"] % 2 != 0, ["S % 2 != 0"]),
        (lambda case: case.sizes["S"] > 20, ["S > 20"]),
        (lambda case: 20 < case.sizes["S"] < 50, ["S > 20 and S < 50"]),
        (lambda case: case.sizes["B"] == 1, ["B = 1"]),
        (lambda case: case.sizes["S"] > case.sizes["T"], ["S > T"]),
        (lambda case: mask(case) != "zero_one", ["mask has a value other than 0 and 1"]),
        (lambda case: dropped(case) > 0, ["p of dropout > 0"]),
        (lambda case: 0 < dropped(case) < 1, ["p of dropout is between 0 and 1"]),
        (lambda case: case.inputs[0].layout != "transposed", ["the layout of x has contiguous rows"]),
        (lambda case: case.inputs[0].layout == "contiguous", ["the layout of x = contiguous"]),
        (lambda case: case.inputs[0].dtype == "float32", ["the dtype = float32"]),
        (lambda case: case.sizes["S"] % 32 == 1 and dropped(case) > 0, ["p of dropout > 0"]),
        (lambda case: True, []),
    ],
)
def test_a_planted_condition_is_found_and_no_other(fails: Callable[[Case], bool], expected: list[str]) -> None:
    assert rules(casefile.loads(MASKED), fails) == expected


def test_a_condition_keeps_examples_of_both_sides_of_its_boundary() -> None:
    (found,) = explained(casefile.loads(MASKED), lambda other: other.sizes["S"] > 20)
    assert {21, 33} <= {*found.fails}
    assert max(found.passes) == 20
    assert str(found) == "S > 20 (fails with 33, 21, 24, 32; passes with 20, 19, 17, 3)"


def test_numbers_that_pass_by_chance_are_no_condition() -> None:
    def fails(other: Case) -> bool:
        return dropped(other) == 0.5 or other.inputs[0].values.seed > 0

    assert rules(casefile.loads(MASKED), fails) == []


def test_a_bound_tells_that_nothing_could_try_the_sizes_beside_it() -> None:
    refused = SubjectResult("passes", Verdict.REJECTED)

    def judge(other: Case) -> SubjectResult:
        size = other.sizes["S"]
        return refused if 40 < size < 60 else FAILS if size <= 40 else RIGHT

    (found,) = find_conditions(casefile.loads(MASKED), FAILS, judge, sizes_only=True)
    assert not found.is_exact
    assert not found.rule.holds(60)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_rule_of_few_values_says_that_time_ran_out(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    now = [0.0]
    monkeypatch.setattr("triage.report.conditions.time.monotonic", lambda: now[0])

    def judge(other: Case) -> SubjectResult:
        if dropped(other) > 0:
            return FAILS
        now[0] = 1e9 if is_late else 0.0
        return RIGHT

    (found,) = find_conditions(casefile.loads(MASKED), FAILS, judge)
    assert found.is_exact is not is_late


def test_the_property_that_matters_is_named(case: Case) -> None:
    def fails(other: Case) -> bool:
        return any(op.kind == "softmax" and attributes(op)["dim"] == -2 for op in other.ops)

    (found,) = explained(case, fails)
    assert str(found) == "dim of softmax = -2 (fails with -2; passes with -1, -3, -4)"


def test_the_number_of_a_call_is_varied_in_place_of_the_attribute_that_it_stands_for() -> None:
    numbers = load(ROOT / "corpus/known/larger-of-a-float-and-1.case.yaml").case

    def fails(other: Case) -> bool:
        return all(float(value) < 1 for call in other.calls for _, value in call.numbers)

    assert rules(numbers, fails) == [
        "n in the second call != 1.0 or 2.0 or 1.25",
        "passes with the number that at_least_1 gives as an argument",
    ]


def test_what_edits_take_away_is_a_condition() -> None:
    again = LaterCall(under="inference")
    called = replace(casefile.loads(MASKED), mode="inference", calls=(again,), settings=(("memory_planning", True),))
    assert rules(called, lambda other: bool(other.settings)) == ["passes with no memory_planning"]
    alone = ["passes with the first call alone", "passes with the second call alone"]
    assert rules(called, lambda other: bool(other.calls)) == alone
    assert rules(casefile.loads(MASKED), lambda other: other.training) == ["passes with inference"]


def test_size_1_and_sizes_without_a_rule_say_nothing(case: Case) -> None:
    assert rules(case, lambda other: other.sizes["S"] > 1) == []
    assert rules(case, lambda other: other.sizes["S"] in (8, 9, 65, 128)) == []


def test_sizes_that_must_be_equal_are_told_so(case: Case) -> None:
    sizes = dict.fromkeys(case.sizes, 7) | {"H": 3, "S": 3}
    square = replace(case, dims=tuple(sizes.items()))
    assert rules(square, lambda other: other.sizes["H"] == other.sizes["S"]) == ["H = S"]


def test_sizes_between_which_one_relation_holds_have_no_two_bounds(case: Case) -> None:
    sizes = dict.fromkeys(case.sizes, 7) | {"S": 2, "D": 3}
    narrow = replace(case, dims=tuple(sizes.items()))
    assert rules(narrow, lambda other: other.sizes["S"] < other.sizes["D"]) == ["S < D"]
    assert rules(narrow, lambda other: other.sizes["S"] < 3 and other.sizes["D"] > 2) == ["S < 3", "D > 2"]
    assert rules(narrow, lambda other: 1 < other.sizes["S"] < other.sizes["D"]) == ["S < D", "S > 1"]
    assert rules(narrow, lambda other: other.sizes["S"] < other.sizes["D"] and other.sizes["D"] < 60) == [
        "S < D",
        "D < 60",
    ]
    wide = replace(case, dims=tuple((sizes | {"S": 5, "D": 4}).items()))
    assert rules(wide, lambda other: 2 < other.sizes["D"] < other.sizes["S"]) == ["S > D", "D > 2"]


def test_what_no_rewrite_takes_is_no_condition_of_the_mistake(case: Case) -> None:
    found = explained(
        case, lambda other: other.sizes == case.sizes, rewrite=True, passing=replace(RIGHT, applied_rewrites=())
    )
    assert found == []


def test_a_rewrite_that_raises_before_it_is_applied_has_conditions() -> None:
    raises = SubjectResult("passes", Verdict.COMPILE_ERROR)

    def judge(other: Case) -> SubjectResult:
        return raises if dropped(other) > 0 else RIGHT

    (found,) = find_conditions(casefile.loads(MASKED), raises, judge, rewrite=True)
    assert found.rule.spell(found.subject) == "p of dropout > 0"


def test_a_failure_of_another_kind_is_neither(case: Case) -> None:
    other = SubjectResult("passes", Verdict.COMPILE_ERROR)
    found = explained(case, lambda varied: varied.canonical() == case.canonical(), passing=other)
    assert found == []


def test_no_case_is_judged_once_time_has_run_out(case: Case) -> None:
    assert not find_conditions(case, FAILS, lambda other: FAILS, seconds=-1)
