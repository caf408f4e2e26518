"""A subject that runs what caches have: hits happen and are right, and keys that forget something are found."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from fuzz.ask.evaluator import build_check
from fuzz.check.check import check
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import warm_caches
from fuzz.check.torch_api.settings import configure_torch
from fuzz.check.torch_api.torch_internals import wrap
from fuzz.experiments import Trial
from fuzz.protocol import CoverageItem, CoverageKind, SubjectResult, Verdict
from generators.program.case import Case
from generators.sampling.choices import Choices
from generators.sampling.neighbours import list_near
from generators.sampling.sample import sample
from tests.campaign.test_history import HALVED, QUARTERED

pytestmark = pytest.mark.compiles

HALVED, QUARTERED = (replace(case, contracts=()) for case in (HALVED, QUARTERED))
TRANSPOSED = replace(HALVED, inputs=(replace(HALVED.inputs[0], layout="transposed"), *HALVED.inputs[1:]))
HITS = {CoverageItem(CoverageKind.CACHE, name) for name in ("fxgraph_cache_hit", "autograd_cache_hit")}


@pytest.fixture(autouse=True)
def own_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_caches, "_homes", {})
    monkeypatch.setattr(warm_caches, "_artifacts", {})
    configure_torch()


def judge(case: Case, *experiments: Trial, name: str = "inductor_warm") -> SubjectResult:
    request = build_check(case, (name,), experiments=experiments)
    return check(request, {name: find(name)}, "cpu", lambda _: None, lambda: 0.0).results[0]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_case_runs_what_the_caches_have(mode: str) -> None:
    result = judge(replace(HALVED, mode=mode))
    assert result.verdict in (Verdict.OK, Verdict.ROUNDING)
    assert {*result.coverage} >= HITS
    assert HITS.isdisjoint(judge(HALVED, name="inductor").coverage)
    assert not torch._inductor.config.fx_graph_cache


@pytest.mark.parametrize(
    ("plant", "earlier", "verdict"),
    [
        ("key_without_numbers", QUARTERED, Verdict.WRONG_RESULT),
        ("key_without_strides", TRANSPOSED, Verdict.RUNTIME_ERROR),
    ],
)
def test_a_key_that_forgets_something_is_found(plant: str, earlier: Case, verdict: Verdict) -> None:
    path, make = FUNCTIONS[plant][1:]
    importing = "torch._functorch._aot_autograd.autograd_cache"
    also = wrap(importing, path, make) if plant == "key_without_strides" else nullcontext()
    with wrap(*FUNCTIONS[plant]), also:
        assert not judge(earlier).verdict.is_finding
        assert judge(HALVED).verdict is verdict
        assert not judge(HALVED, Trial("unfused")).verdict.is_finding  # experiments have caches of their own
    assert not judge(HALVED).verdict.is_finding


def test_near_cases_differ_in_one_thing() -> None:
    case = sample(0, 3)
    near = list_near(case, Choices("near"), 3)
    assert len({other.id for other in (case, *near)}) == 4
    assert all([op.kind for op in other.ops] == [op.kind for op in case.ops] for other in near)
