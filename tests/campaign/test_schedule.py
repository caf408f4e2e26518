"""Subjects take turns by their shares of time, investigations leave time for cases, and cores change no finding."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corpus import casefile
from fuzz.campaign.crew import CampaignEvaluator
from fuzz.campaign.options import Budget
from fuzz.campaign.schedule import CaseNumbers, Schedule, choose_subjects
from fuzz.campaign.session import run_campaign
from fuzz.subjects import find_abilities
from generators.errors import UserError
from generators.program.case import Case
from generators.sampling.neighbours import Neighbourhood
from tests.campaign.fakes import case, events, options, sampler, setup
from tests.campaign.test_campaign import WRONG, found
from tests.programs import program

DEFAULT = choose_subjects([])


def test_every_case_meets_the_cheap_subject_and_the_dear_ones_take_their_share() -> None:
    schedule = Schedule(DEFAULT)
    cost = {"passes": 0.1, "inductor": 2.0, "inductor_dynamic": 2.0, "aot_eager": 0.3}
    spent = dict.fromkeys(DEFAULT, 0.0)
    for _ in range(2000):
        subjects = schedule.subjects_for(case("exp"))
        assert subjects[0] == "passes"
        by_subject = {subject: cost.get(subject, 2.0) for subject in subjects}
        schedule.add_time(subjects, sum(by_subject.values()), by_subject)
        for subject, seconds in by_subject.items():
            spent[subject] += seconds
    total = sum(spent.values())
    assert 0.13 < spent["inductor"] / total < 0.17
    assert spent["aot_eager"] / total < 0.03


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_single_worker_has_the_first_case_that_compiles_cxx(is_rejected: bool) -> None:
    schedule = Schedule(("passes", "inductor"))
    schedule.add_time(("passes",), 200.0, {"passes": 200.0})
    chosen = [schedule.subjects_for(case("exp")) for _ in range(3)]
    assert chosen == [("passes", "inductor"), ("passes",), ("passes",)]
    schedule.add_time(chosen[0], 1.0, {} if is_rejected else {"inductor": 1.0})
    chosen = [schedule.subjects_for(case("tanh")), schedule.subjects_for(case("sin"))]
    assert chosen == [("passes", "inductor"), ("passes",) if is_rejected else ("passes", "inductor")]


def test_a_compiler_waits_for_operations_that_are_new_to_it() -> None:
    schedule = Schedule(("passes", "inductor"))
    schedule.add_time(("passes",), 1e6, {"passes": 1e6})
    assert "inductor" in schedule.subjects_for(case("exp"))
    schedule.add_time(("passes", "inductor"), 1.0, {}, ["exp"])
    assert "inductor" in schedule.subjects_for(case("exp"))  # eager refused the first
    schedule.add_time(("passes", "inductor"), 1.0, {"inductor": 1.0}, ["exp"])
    again = [schedule.subjects_for(case("exp")) for _ in range(20)]
    assert again.index(("passes", "inductor")) == 8
    assert "inductor" in schedule.subjects_for(case("softmax"))


def test_cheap_subjects_find_the_first_bug_before_anything_compiles() -> None:
    schedule = Schedule(DEFAULT)
    schedule.add_time((), 70.0, {})
    assert schedule.subjects_for(case("exp"))[1] == "aot_eager"
    schedule.has_shown = True
    assert schedule.subjects_for(case("exp"))[1] == "inductor"


EXP, TUNED = case("exp"), replace(case("exp"), settings=(("cpp.threads", 4),))
TRAINED, FROZEN = replace(EXP, mode="training"), replace(TUNED, settings=(("cpp.threads", 4), ("freezing", True)))
WRITTEN = casefile.loads(program("S: 3", {"x": "S"}, "out = mul_ x, other: 2.0"))


@pytest.mark.parametrize(
    ("subjects", "free", "one", "met"),
    [
        # Compilers of inference programs, and exports, get what they promise to take.
        ("passes openvino", 0.0, EXP, "passes openvino"),
        ("passes openvino", 0.0, TRAINED, "passes"),
        ("passes openvino", 0.0, WRITTEN, "passes"),
        ("openvino onnxruntime", 0.0, EXP, "openvino onnxruntime"),
        ("openvino onnxruntime", 0.0, WRITTEN, "openvino"),
        ("passes export", 1000.0, EXP, "passes export"),
        ("passes export", 1000.0, TRAINED, "passes"),
        # Backends take what a rewrite may make attention.
        ("passes triton sdpa_flash", 1000.0, EXP, "passes"),
        ("passes triton sdpa_flash", 1000.0, case("softmax"), "passes sdpa_flash"),
        # A subject with options meets cases with settings that act there.
        ("passes inductor_options", 1000.0, EXP, "passes"),
        ("passes inductor_options", 1000.0, TUNED, "passes inductor_options"),
        ("passes passes_options", 1000.0, TUNED, "passes"),
        ("passes passes_options", 1000.0, FROZEN, "passes passes_options"),
        # Every case meets a subject that is chosen alone.
        *(
            (name, 0.0, EXP, name)
            for name in ("inductor", "aot_eager", "eager", "my.kernel:call", "passes my.kernel:call")
        ),
    ],
)
def test_a_case_meets_the_subjects_that_take_it(subjects: str, free: float, one: Case, met: str) -> None:
    """`free`: seconds that no subject has used yet."""
    schedule = Schedule(choose_subjects(subjects.split()))
    schedule.add_time((), free, {})
    assert schedule.subjects_for(one) == tuple(met.split())


def test_abilities_are_those_of_all_subjects() -> None:
    assert find_abilities(["openvino", "onnxruntime"]) == frozenset({"inference", "dynamic"})
    assert find_abilities(["openvino", "passes"]) is find_abilities([]) is None


@pytest.mark.worker
def test_a_module_is_judged_as_its_user_compiles_it_before_any_neighbour(tmp_path: Path) -> None:
    blocks = {"first": case("exp"), "second": replace(case("sin"), mode="training")}
    given = options(
        tmp_path, "6x", subjects=DEFAULT, models=Neighbourhood(blocks), worker_config=setup(subjects=DEFAULT)
    )
    run_campaign(given)
    judged = [(event["case"], tuple(event["verdicts"])) for event in events(given.out, "CaseJudged")]
    assert [case_id for case_id, _ in judged[:4]] == [one.id for one in blocks.values()] * 2
    assert [subjects for _, subjects in judged[:4]] == [
        *([("passes", "inductor")] * 2),
        ("inductor_dynamic",),
        ("inductor_dynamic", "inductor_recomputing"),
    ]
    assert not {case_id for case_id, _ in judged[4:]} & {one.id for one in blocks.values()}


def test_around_a_module_torch_compile_has_a_larger_share() -> None:
    shares = list[float]()
    for schedule in (Schedule(DEFAULT), Schedule(DEFAULT, of_module=True)):
        spent, total = 0.0, 1.0
        for _ in range(1000):
            subjects = schedule.subjects_for(case("exp"))
            by_subject = {subject: 0.1 if subject == "passes" else 1.0 for subject in subjects}
            schedule.add_time(subjects, sum(by_subject.values()), by_subject)
            spent, total = spent + by_subject.get("inductor", 0.0), total + sum(by_subject.values())
        shares.append(spent / total)
    assert shares[1] > 1.5 * shares[0]


def test_modes_for_gpus_are_defaults_there_alone() -> None:
    modes = {"inductor_reduce_overhead", "inductor_max_autotune"}
    assert not modes & {*choose_subjects([])}
    assert modes < {*choose_subjects([], "cuda")}


def test_what_is_aimed_at_a_pattern_with_dropout_meets_the_subject_in_which_it_can_fire() -> None:
    schedule = Schedule(DEFAULT)
    schedule.add_time(DEFAULT, 1000.0, dict.fromkeys(DEFAULT, 1000.0))
    dropping = replace(case("dropout"), mode="training")
    dropping = replace(dropping, ops=(replace(dropping.ops[0], attrs=(("p", 0.1),)),))
    assert schedule.subjects_for(dropping) == schedule.subjects_for(case("exp"), targeted=True) == ("passes",)
    assert schedule.subjects_for(dropping, targeted=True) == ("passes_random",)


@pytest.mark.parametrize("name", ["", "Eager", "Inductor", "a:", ":b", "a b:c", "a:b.c", "a/b:c"])
def test_unknown_subjects_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match=r"unknown subject .* there are passes, inductor, .*package.module:function"):
        choose_subjects([name])


def test_numbers_are_handed_out_once_and_holes_first() -> None:
    indices = CaseNumbers(3, frozenset({4, 6}), Budget(cases=4))
    assert [indices.take() for _ in range(5)] == [3, 5, 7, 8, None]


CHECK_SECONDS = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of a campaign: each check takes `CHECK_SECONDS`."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    ask = CampaignEvaluator.ask

    def ask_slowly(*arguments: Any) -> Any:
        clock.now += CHECK_SECONDS
        return ask(*arguments)

    monkeypatch.setattr(CampaignEvaluator, "ask", ask_slowly)
    for module in ("options", "time_shares"):
        monkeypatch.setattr(f"fuzz.campaign.{module}.time", clock)
    return clock


@pytest.mark.worker
def test_a_long_investigation_leaves_the_only_worker_time_for_cases(tmp_path: Path, clock: SimpleNamespace) -> None:
    given = options(tmp_path, budget="180s", rules=[WRONG], shrink_seconds=60.0)
    run_campaign(given, sampler("softmax", every=1))
    cases = len(events(given.out, "CaseJudged"))
    assert clock.now >= 180
    assert cases * CHECK_SECONDS >= 0.5 * (180 - 60) - CHECK_SECONDS  # The last third is for what was begun.
    assert len(found(given)) == 1


@pytest.mark.worker
def test_a_short_investigation_goes_before_new_cases(tmp_path: Path, clock: SimpleNamespace) -> None:
    given = options(tmp_path, budget="3600s", rules=[WRONG], shrink_seconds=600.0, fail_fast=True)
    run_campaign(given, sampler("softmax", every=1))
    assert len(events(given.out, "CaseJudged")) <= 2
    assert clock.now < 600
    assert len(found(given)) == 1


@pytest.mark.worker
def test_a_finding_does_not_depend_on_how_many_checks_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minimal = []
    for cores in (1, 8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        given = options(tmp_path / str(cores), "20x", rules=[WRONG])
        assert run_campaign(given, sampler("softmax")).new == 1
        minimal += [entry.case for entry in found(given)]
        helpers = [path.name for path in (given.out / "workers").glob("helper*.log")]
        assert bool(helpers) == (cores > 1)
    assert minimal[0] == minimal[1]
