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
from tests.programs import program
from tests.triage.conftest import SOFTMAX_OVER_QUERIES
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


def blamed(
    who: str, stage: Stage, part: str = "", mechanism: MechanismKind = MechanismKind.COMPILING_RAISES
) -> CauseKey:
    return CauseKey(who, stage, part, mechanism)


OF_LAYER = FaultyLine("nn/modules/transformer.py", 7, "forward", "2.15.0", "repair")
OF_INDUCTOR = replace(OF_LAYER, file="_inductor/ir.py")
REGRESSED = {"2.9": "ok", "2.10": "ok", "2.11": "wrong_result"}
FUZZER, PT2 = "topic: fuzzer", "oncall: pt2"


@pytest.mark.parametrize(
    ("verdict", "cause", "fault", "labels"),
    [
        # The first stage that fails names the owner, and the line at fault before it.
        ("compile_error", blamed("dynamo", Stage.DYNAMO), None, [PT2, "module: dynamo", FUZZER]),
        ("compile_error", blamed("aot", Stage.DYNAMO), None, [PT2, "module: pt2-dispatcher", FUZZER]),
        (
            "compile_error",
            blamed("aot", Stage.DECOMPOSITION, "aten.lerp"),
            None,
            [PT2, "module: pt2-dispatcher", FUZZER],
        ),
        ("compile_error", blamed("aot", Stage.DYNAMO, "torch_export"), None, [PT2, "oncall: export", FUZZER]),
        ("compile_error", blamed("inductor", Stage.CODEGEN, "casts"), None, [PT2, "module: inductor", FUZZER]),
        ("compile_error", blamed("aot", Stage.DYNAMO), OF_LAYER, ["module: nn", FUZZER]),
        ("compile_error", blamed("aot", Stage.DYNAMO), OF_INDUCTOR, [PT2, "module: inductor", FUZZER]),
        (
            "compile_error",
            blamed("sharded", Stage.SHARDING, "aten.embedding"),
            None,
            ["oncall: distributed", "module: dtensor", FUZZER],
        ),
        # Silence and an operation of eager have labels too.
        ("wrong_result", SDPA, None, [FUZZER, "module: sdpa", "module: correctness (silent)"]),
    ],
)
def test_labels_are_proposed_by_cause_and_verdict(
    case: Case, verdict: str, cause: CauseKey, fault: FaultyLine | None, labels: list[str]
) -> None:
    assert propose_labels(failing(case, verdict), cause, fault) == labels


def test_the_line_at_fault_is_linked(case: Case) -> None:
    bug = Bug("b", "a bug", cause=SDPA, decided_by=(), fault=OF_LAYER)
    facts = render_facts("a bug", failing(case, "compile_error"), SDPA, bug)
    assert "(https://github.com/pytorch/pytorch/blob/v2.15.0/torch/nn/modules/transformer.py#L7)" in facts


def test_operations_have_labels_without_a_cause() -> None:
    entry = load(ROOT / "corpus" / "known" / "flex-mask-by-head.case.yaml")
    assert propose_labels(entry, None) == ["topic: fuzzer", "module: flex attention"]


def test_a_regression_is_labelled_and_told_with_its_releases(case: Case) -> None:
    regressed = failing(case, "wrong_result", REGRESSED)
    assert propose_labels(regressed, SDPA)[-1] == "module: regression"
    told = "fails in 2.11; right in 2.9, 2.10; a regression: last good 2.10, first bad 2.11"
    assert describe_releases(regressed) == told


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
MASKED = program(
    "B: 1, S: 33, T: 5",
    {"x": "B, S, T", "mask": "S, T; values: {kind: signed, seed: 1}"},
    "hidden = eq mask, other: 0",
    "filled = masked_fill x hidden",
    "out = dropout filled, p: 0.5",
    mode="training",
)


def explained(
    case: Case, fails: Callable[[Case], bool], *, rewrite: bool = False, passing: SubjectResult = RIGHT
) -> list[Condition]:
    return find_conditions(case, FAILS, lambda other: FAILS if fails(other) else passing, rewrite=rewrite)


def mask(case: Case) -> str:
    return next(item.values.kind for item in case.inputs if item.name == "mask")


def dropped(case: Case) -> float:
    return next(float(str(attributes(op)["p"])) for op in case.ops if op.kind == "dropout")


def sized(**sizes: int) -> Case:
    """A softmax over queries in which these sizes are alike or apart, and all others 7."""
    case = casefile.loads(SOFTMAX_OVER_QUERIES)
    return replace(case, dims=tuple((dict.fromkeys(case.sizes, 7) | sizes).items()))


PLAIN, QUERIES, NARROW = casefile.loads(MASKED), casefile.loads(SOFTMAX_OVER_QUERIES), sized(S=2, D=3)
AGAIN = LaterCall(under="inference")
CALLED = replace(PLAIN, mode="inference", calls=(AGAIN,), settings=(("memory_planning", True),))
NUMBERS = load(ROOT / "corpus/known/larger-of-a-float-and-1.case.yaml").case


@pytest.mark.parametrize(
    ("case", "fails", "expected"),
    [
        (PLAIN, lambda case: case.sizes["S"] > 32 and case.sizes["S"] % 16 != 0, ["S > 32 and S % 16 != 0"]),
        (PLAIN, lambda case: case.sizes["S"] % 2 != 0, ["S % 2 != 0"]),
        (PLAIN, lambda case: case.sizes["S"] > 20, ["S > 20"]),
        (PLAIN, lambda case: 20 < case.sizes["S"] < 50, ["S > 20 and S < 50"]),
        (PLAIN, lambda case: case.sizes["B"] == 1, ["B = 1"]),
        (PLAIN, lambda case: case.sizes["S"] > case.sizes["T"], ["S > T"]),
        (PLAIN, lambda case: mask(case) != "zero_one", ["mask has a value other than 0 and 1"]),
        (PLAIN, lambda case: dropped(case) > 0, ["p of dropout > 0"]),
        (PLAIN, lambda case: 0 < dropped(case) < 1, ["p of dropout is between 0 and 1"]),
        (PLAIN, lambda case: case.inputs[0].layout != "transposed", ["the layout of x has contiguous rows"]),
        (PLAIN, lambda case: case.inputs[0].layout == "contiguous", ["the layout of x = contiguous"]),
        (PLAIN, lambda case: case.inputs[0].dtype == "float32", ["the dtype = float32"]),
        (PLAIN, lambda case: case.sizes["S"] % 32 == 1 and dropped(case) > 0, ["p of dropout > 0"]),
        (PLAIN, lambda case: True, []),
        # Numbers that pass by chance, size 1 and sizes without a rule are no condition.
        (PLAIN, lambda case: dropped(case) == 0.5 or case.inputs[0].values.seed > 0, []),
        (QUERIES, lambda case: case.sizes["S"] > 1, []),
        (QUERIES, lambda case: case.sizes["S"] in (8, 9, 65, 128), []),
        # Sizes between which one relation holds have no two bounds.
        (sized(H=3, S=3), lambda case: case.sizes["H"] == case.sizes["S"], ["H = S"]),
        (NARROW, lambda case: case.sizes["S"] < case.sizes["D"], ["S < D"]),
        (NARROW, lambda case: case.sizes["S"] < 3 and case.sizes["D"] > 2, ["S < 3", "D > 2"]),
        (NARROW, lambda case: 1 < case.sizes["S"] < case.sizes["D"], ["S < D", "S > 1"]),
        (NARROW, lambda case: case.sizes["S"] < case.sizes["D"] and case.sizes["D"] < 60, ["S < D", "D < 60"]),
        (sized(S=5, D=4), lambda case: 2 < case.sizes["D"] < case.sizes["S"], ["S > D", "D > 2"]),
        # The number of a call is varied in place of the attribute that it stands for.
        (
            NUMBERS,
            lambda case: all(float(value) < 1 for call in case.calls for _, value in call.numbers),
            [
                "n in the second call != 1.0 or 2.0 or 1.25",
                "passes with the number that at_least_1 gives as an argument",
            ],
        ),
        # What edits take away is a condition.
        (CALLED, lambda case: bool(case.settings), ["passes with no memory_planning"]),
        (
            CALLED,
            lambda case: bool(case.calls),
            ["passes with the first call alone", "passes with the second call alone"],
        ),
        (PLAIN, lambda case: case.training, ["passes with inference"]),
    ],
)
def test_a_planted_condition_is_found_and_no_other(
    case: Case, fails: Callable[[Case], bool], expected: list[str]
) -> None:
    assert fails(case)
    assert [condition.rule.spell(condition.subject) for condition in explained(case, fails)] == expected


def test_a_wrong_gradient_needs_training_which_is_no_condition() -> None:
    wrong = replace(FAILS, verdict=Verdict.WRONG_GRADIENT)
    found = find_conditions(PLAIN, wrong, lambda other: wrong if other.training else RIGHT)
    assert not found


def test_a_condition_keeps_examples_of_both_sides_of_its_boundary() -> None:
    (found,) = explained(PLAIN, lambda other: other.sizes["S"] > 20)
    assert {21, 33} <= {*found.fails}
    assert max(found.passes) == 20
    assert str(found) == "S > 20 (fails with 33, 21, 24, 32; passes with 20, 19, 17, 3)"


def test_a_bound_tells_that_nothing_could_try_the_sizes_beside_it() -> None:
    refused = SubjectResult("passes", Verdict.REJECTED)

    def judge(other: Case) -> SubjectResult:
        size = other.sizes["S"]
        return refused if 40 < size < 60 else FAILS if size <= 40 else RIGHT

    (found,) = find_conditions(PLAIN, FAILS, judge, sizes_only=True)
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

    (found,) = find_conditions(PLAIN, FAILS, judge)
    assert found.is_exact is not is_late


def test_the_property_that_matters_is_named(case: Case) -> None:
    def fails(other: Case) -> bool:
        return any(op.kind == "softmax" and attributes(op)["dim"] == -2 for op in other.ops)

    (found,) = explained(case, fails)
    assert str(found) == "dim of softmax = -2 (fails with -2; passes with -1, -3, -4)"


def test_what_no_rewrite_takes_is_no_condition_of_the_mistake(case: Case) -> None:
    found = explained(
        case, lambda other: other.sizes == case.sizes, rewrite=True, passing=replace(RIGHT, applied_rewrites=())
    )
    assert found == []


def test_a_rewrite_that_raises_before_it_is_applied_has_conditions() -> None:
    raises = SubjectResult("passes", Verdict.COMPILE_ERROR)

    def judge(other: Case) -> SubjectResult:
        return raises if dropped(other) > 0 else RIGHT

    (found,) = find_conditions(PLAIN, raises, judge, rewrite=True)
    assert found.rule.spell(found.subject) == "p of dropout > 0"


def test_a_failure_of_another_kind_is_neither(case: Case) -> None:
    other = SubjectResult("passes", Verdict.COMPILE_ERROR)
    found = explained(case, lambda varied: varied.canonical() == case.canonical(), passing=other)
    assert found == []


def test_no_case_is_judged_once_time_has_run_out(case: Case) -> None:
    assert not find_conditions(case, FAILS, lambda other: FAILS, seconds=-1)
