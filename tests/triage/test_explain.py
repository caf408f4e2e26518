"""What a finding takes, from judges whose rule is known."""

from collections.abc import Callable
from dataclasses import replace

from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case
from generators.program.type_check import attributes
from triage.report.conditions import find_conditions, perturb

FAILS = SubjectResult("passes", Verdict.WRONG_RESULT, applied_rewrites=("_sfdp_pattern_1_inference",))
RIGHT = SubjectResult("passes", Verdict.OK, applied_rewrites=("_sfdp_pattern_1_inference",))


def explained(
    case: Case, fails: Callable[[Case], bool], *, rewrite: bool = False, passing: SubjectResult = RIGHT
) -> list[str]:
    return find_conditions(case, FAILS, lambda other: FAILS if fails(other) else passing, rewrite=rewrite)


def test_the_property_that_matters_is_named(case: Case) -> None:
    def fails(other: Case) -> bool:
        return any(op.kind == "softmax" and attributes(op)["dim"] == -2 for op in other.ops)

    found = explained(case, fails)
    assert found == ["dim of softmax: fails with -2; passes with -1, -3, -4"]


def test_sizes_that_fail_are_told_with_the_nearest_that_pass(case: Case) -> None:
    found = explained(case, lambda other: other.sizes["S"] > 4)
    assert found == ["S: fails with 8, 7, 9, 32, 33, 63; passes with 2, 3"]


def test_sizes_among_which_only_1_passes_or_some_between_say_nothing(case: Case) -> None:
    assert explained(case, lambda other: other.sizes["S"] > 1) == []
    assert explained(case, lambda other: other.sizes["S"] in (8, 64)) == []


def test_sizes_that_must_be_equal_are_told_so(case: Case) -> None:
    sizes = dict.fromkeys(case.sizes, 7) | {"H": 3, "S": 3}
    square = replace(case, dims=tuple(sizes.items()))
    found = explained(square, lambda other: other.sizes["H"] == other.sizes["S"])
    assert found == ["H == S: passes where they differ"]


def test_what_no_rewrite_takes_is_no_condition_of_the_mistake(case: Case) -> None:
    found = explained(
        case, lambda other: other.sizes == case.sizes, rewrite=True, passing=replace(RIGHT, applied_rewrites=())
    )
    assert found == []


def test_a_failure_of_another_kind_is_neither(case: Case) -> None:
    other = SubjectResult("passes", Verdict.COMPILE_ERROR)
    found = explained(case, lambda varied: varied.canonical() == case.canonical(), passing=other)
    assert found == []


def test_every_variation_is_another_case_with_a_name_for_what_changed(case: Case) -> None:
    made = perturb(case)
    assert len({one.case.canonical() for one in made}) == len(made) > 30
    assert all(one.label and one.is_now != one.becomes for one in made)


def test_no_case_is_judged_once_time_has_run_out(case: Case) -> None:
    assert not find_conditions(case, FAILS, lambda other: FAILS, seconds=-1)
