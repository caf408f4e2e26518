"""A guided search keeps what reached something new, judges its variants, and continues."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus import entry
from corpus.entry import Entry, Expectation
from fuzz.bug_identity import Symptom
from fuzz.campaign.options import Options
from fuzz.campaign.search import AttentionSearch, CompilerSearch, load_seeds
from fuzz.campaign.session import run_campaign
from fuzz.known_bugs import KnownBug, KnownBugs
from fuzz.protocol import CoverageItem, CoverageKind, Result, SubjectResult, Verdict
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.failures import NotTaken, Refusal
from fuzz.protocol.rewrites import CALL, WrongRewrite
from fuzz.run_store import Results
from generators.errors import UserError
from generators.program.attention_stub import AttentionCall, list_calls
from generators.program.case import Case
from generators.program.portability import find_obstacle
from generators.sampling.sample import Limits, sample
from tests.campaign.fakes import case, events, judged, options, sampler, setup

RULES = [
    {"match": "softmax", "applied_rewrites": ["mul_softmax_pattern"]},
    {"match": "log\\(", "coverage": [{"kind": "op", "name": "aten.log"}]},
]


PATTERN = {"match": "softmax", "applied_rewrites": ["_sfdp_pattern_5_inference"]}


def guided(tmp_path: Path, budget: str = "60x", **given: Any) -> Options:
    return options(
        tmp_path, budget, engine="guided", **{"seeds": (case("softmax", "exp"),), "rules": [PATTERN], **given}
    )


def queue_of(given: Options) -> list[tuple[Case, frozenset[CoverageItem]]]:
    with Results(given.out) as results:
        return list(results.queue())


def test_what_reaches_something_new_is_queued_once_and_stored(tmp_path: Path) -> None:
    given = guided(tmp_path, rules=RULES, seeds=())
    run_campaign(given, sampler("softmax", "log", every=4))
    queued = queue_of(given)
    reached = {CoverageItem(CoverageKind.REWRITE, "mul_softmax_pattern"), CoverageItem(CoverageKind.OP, "aten.log")}
    assert {item for _, items in queued for item in items} == reached
    assert 1 <= len(queued) <= 2


def test_what_an_attention_rewrite_took_is_tried_in_its_other_forms(tmp_path: Path) -> None:
    """Nothing that is drawn has a softmax, and the seed's is in float32. Four of its variants are in half precision."""
    half = {"match": r"softmax[\s\S]*float16", "coverage": [{"kind": "op", "name": "half"}]}
    given = guided(tmp_path, "30x", rules=[half, PATTERN])
    run_campaign(given, sampler())
    with Results(given.out) as results:
        assert results.count_coverage()[CoverageItem(CoverageKind.OP, "half")] >= 4


def test_a_search_goes_on_with_its_queue(tmp_path: Path) -> None:
    """The second run judges the variants of what the first one queued."""
    first, second = (guided(tmp_path, budget) for budget in ("1x", "30x"))
    run_campaign(first, sampler())
    before = queue_of(first)
    assert len(before) == 1
    run_campaign(second, sampler())
    assert before[0][0] in [queued for queued, _ in queue_of(second)]
    with Results(second.out) as results:
        assert results.counts.cursor == 31
        assert results.count_coverage()[CoverageItem(CoverageKind.REWRITE, "_sfdp_pattern_5_inference")] > 4


def test_no_case_is_judged_twice(tmp_path: Path) -> None:
    """Neither random cases nor variants, in a run that is continued either."""
    given = guided(tmp_path, "40x")
    run_campaign(given, sampler("softmax"))
    run_campaign(given, sampler("softmax"))
    cases = [event["case"] for event in events(given.out, "CaseJudged")]
    # What is drawn small programs may be equal by chance.
    assert len(cases) == 80 and len(cases) - len(set(cases)) <= 2


def test_what_a_queued_case_reaches_later_is_in_the_queue_too(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        one = case("exp")
        items = [CoverageItem(CoverageKind.OP, name) for name in ("first", "second")]
        for item in items:
            results.record_case(one, judged(coverage=[item]), queued=True)
        assert list(results.queue()) == [(one, frozenset(items))]


def test_seeds_are_read_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        load_seeds(tmp_path / "nowhere")
    entry.save(Entry(case("exp", "tanh")), tmp_path / "seeds")
    entry.save(Entry(case("exp")), tmp_path / "seeds")
    entry.save(Entry(case("sin"), expect=Expectation("known")), tmp_path / "seeds")
    assert [len(one.ops) for one in load_seeds(tmp_path / "seeds")] == [1, 2]


def test_functions_that_compute_attention_are_given_random_cases(tmp_path: Path) -> None:
    worker = setup(rules=RULES, subjects=[NAME], attention=[NAME])
    given = guided(tmp_path, "6x", subjects=(NAME,), worker_config=worker)
    run_campaign(given, sampler())
    with Results(given.out) as results:
        assert results.counts.cursor == 6
        assert not results.count_coverage()


NAME = "my.kernels:attention"
REFUSES = [
    {"match": text, "verdict": "skipped", "failure": {"kind": "not_taken", "why": "unsupported", "detail": text}}
    for text in ("float16", "tanh", "sinks")
]


@pytest.mark.samples
def test_what_a_function_refuses_is_learned(tmp_path: Path) -> None:
    worker = setup(rules=[{**rule, "subjects": [NAME]} for rule in REFUSES], subjects=[NAME], attention=[NAME])
    given = options(tmp_path, "100x", subjects=(NAME,), worker_config=worker)
    run_campaign(given, sample)
    verdicts = [event["verdicts"][NAME] for event in events(given.out, "CaseJudged")]
    assert verdicts[:10].count("skipped") >= 3
    assert verdicts[-50:].count("ok") >= 40


@pytest.mark.samples
def test_a_compiler_of_the_users_gets_cases_that_it_promises_to_take(tmp_path: Path) -> None:
    """Its worker alone knows what it promises."""
    drawn = list[Case]()

    def draw(seed: int, index: int, **form: Any) -> Case:
        drawn.append(sample(seed, index, **form))
        return drawn[-1]

    worker = setup(rules=[], subjects=["my:compile"], abilities={"my:compile": ["inference"]})
    run_campaign(options(tmp_path, "20x", subjects=("my:compile",), worker_config=worker), draw)
    assert len(drawn) >= 20
    assert {find_obstacle(one, {"inference"}) for one in drawn} == {""}


def test_operations_that_all_compilers_refuse_are_drawn_rarely() -> None:
    """What one of them takes is drawn as before."""
    subjects = ("openvino", "onnxruntime")
    search = CompilerSearch(lambda index: sample(3, index), 3, subjects)
    before = [search.choose(index).case for index in range(60)]
    counted = Counter(kind for one in before for kind in {op.kind for op in one.ops})
    kind, other = [name for name, number in counted.most_common() if number <= 20][:2]

    def refuse(operator: str) -> NotTaken:
        return NotTaken(Refusal.UNSUPPORTED, "", operator)

    for one in before:
        kinds = {op.kind for op in one.ops}
        both = (
            SubjectResult("", Verdict.SKIPPED, failure=refuse(kind)) if kind in kinds else SubjectResult("", Verdict.OK)
        )
        own = both if other not in kinds else SubjectResult("", Verdict.SKIPPED, failure=refuse(other))
        results = (replace(both, subject="openvino"), replace(own, subject="onnxruntime"))
        search.record(one, Result(0, None, results))
    after = [search.choose(index).case for index in range(60, 120)]

    def count(cases: list[Case], word: str) -> int:
        return sum(any(op.kind == word for op in one.ops) for one in cases)

    assert count(after, kind) < count(before, kind) / 2
    assert count(after, other) > count(after, kind)


def draw_calls(count: int, *bugs: KnownBug) -> list[AttentionCall]:
    known = KnownBugs()
    for bug in bugs:
        known.add(bug)

    def draw(index: int, limits: Limits) -> Case:
        return sample(3, index, attention_only=True, limits=limits)

    search = AttentionSearch(draw, 3, {NAME: Capabilities()}, known, "cpu")
    return [call for index in range(count) for call in list_calls(search.choose(index).case)]


@pytest.mark.samples
@pytest.mark.parametrize(
    ("features", "rewrites", "takes"),
    [
        ({"mode:training"}, (), lambda call: call.training),
        ({"with:causal"}, (WrongRewrite(CALL, {"causal": ("dropped",)}),), lambda call: "causal" in call.options),
        (set(), (WrongRewrite(CALL, {"kv_len": ("16",)}),), lambda call: call.shapes[1][2] > 16),
    ],
)
def test_cases_that_avoid_a_known_bug_come_first(
    features: set[str], rewrites: tuple[WrongRewrite, ...], takes: Callable[[AttentionCall], bool]
) -> None:
    symptom = Symptom(Verdict.WRONG_RESULT, NAME, frozenset(), None, frozenset(features), rewrites)
    before, after = (sum(map(takes, draw_calls(60, *bugs))) for bugs in ((), (KnownBug("bug", symptom),)))
    assert 1 <= after < before / 2


def test_a_bug_that_nothing_avoids_changes_nothing() -> None:
    symptom = Symptom(Verdict.WRONG_RESULT, NAME, frozenset(), None, frozenset())
    assert draw_calls(10, KnownBug("bug", symptom)) == draw_calls(10)
