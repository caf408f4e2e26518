"""The conditions of a finding, from judges whose rule is known."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from corpus import casefile
from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case
from generators.program.type_check import attributes
from triage.report.conditions import find_conditions
from triage.report.rules import Condition

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
