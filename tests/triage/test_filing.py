"""The rows at the head of a report: labels, issues upstream, releases."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from corpus.causes import CauseKey, MechanismKind, Stage
from corpus.entry import Entry, Expectation, load
from corpus.fault import FaultyLine
from corpus.ledger import Bug
from corpus.upstream import Issue, Upstream
from fuzz.ask.worker_config import ROOT
from generators.program.case import Case
from triage.report.filing import describe_releases, describe_upstream, propose_labels, render_facts, replace_facts

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
    searches = [None, Upstream("2026-09"), Upstream("2026-09", (Issue("pytorch#2", "related", "unknown"), OPEN))]
    told = [describe_upstream(replace(bug, upstream=one)) for one in searches]
    link = "https://github.com/pytorch/pytorch/issues/"
    assert told == [
        "not searched",
        "not found, searched 2026-09",
        f"known: [pytorch#1]({link}1) open (the first); related: [pytorch#2]({link}2); looked up 2026-09",
    ]


def test_a_person_s_words_stay_where_the_rows_are_written_anew(case: Case) -> None:
    entry, bug = failing(case, "wrong_result"), Bug("b", "a | bug", cause=SDPA, decided_by=())
    facts = render_facts(bug.title, entry, bug.cause, bug)
    report = f"## Human note\n\nMine.\n\n{facts}\n### Describe the bug\n"
    known = replace(bug, upstream=Upstream("2026-09", (OPEN,)))
    renewed = replace_facts(report, render_facts(bug.title, entry, bug.cause, known))
    assert "pytorch#1" in renewed and "not searched" not in renewed
    assert replace_facts(renewed, facts) == report
    assert replace_facts("no rows", facts) == "no rows"
