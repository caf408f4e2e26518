"""A campaign over an attention function of one's own, with real workers."""

import itertools
import json
from pathlib import Path

import pytest

from fuzz.ask.worker_config import WorkerConfig
from fuzz.bug_identity import contract_features
from fuzz.campaign import investigation
from fuzz.campaign.session import run_campaign
from generators.program.case import Case
from generators.program.emit import source
from generators.sampling.sample import Limits, sample
from tests.campaign.fakes import options

pytestmark = pytest.mark.worker

PLAIN = frozenset({"grouped", "lengths", "value_dim"})
SUBJECT = "tests.check.planted_attention:without_last_key"


def plain(seed: int, index: int, *, attention_only: bool, limits: Limits, device: str) -> Case:
    """Attention that is asked for nothing but itself."""
    cases = (
        sample(seed, 1000 * index + attempt, attention_only=attention_only, limits=limits, device=device)
        for attempt in itertools.count()
    )
    return next(case for case in cases if contract_features(case) <= PLAIN and "dropout" not in source(case))


def test_a_kernel_with_one_fault_gives_one_finding_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(investigation, "CONFIRMATIONS", 1)
    given = options(
        tmp_path, "8x", seed=3, subjects=(SUBJECT,), worker_config=WorkerConfig(named=(SUBJECT,)), shrink_seconds=5.0
    )
    ending = run_campaign(given, plain)
    assert ending.new == 1, ending.summary
    assert f"wrong_result under {SUBJECT}" in ending.summary
    (found,) = (tmp_path / "found").glob("*.case.yaml")
    assert SUBJECT in found.read_text()
    events = [json.loads(line) for line in (given.out / "events.ndjson").read_text().splitlines()]
    (saved,) = (event for event in events if event["event"] == "FindingSaved")
    assert saved["where"].startswith("out: ")


NARROW = """
def attention(q, k, v, *, scale, mask=None, causal=None):
    if q.requires_grad or k.requires_grad or v.requires_grad:
        raise NotImplementedError("no gradients")
    return attend(q, k, v, scale=scale, mask=mask, causal=causal)

from tests.kernels.reference import math_attention as attend
attention.capabilities = {"dtypes": ("float16",), "max_scores": 1024}
"""


def test_most_cases_are_ones_that_the_function_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = "narrow:attention"
    given = options(tmp_path, "60x", subjects=(name,), worker_config=WorkerConfig(named=(name,)))
    run_campaign(given, sample)
    events = [json.loads(line) for line in (given.out / "events.ndjson").read_text().splitlines()]
    skipped = [event["skipped"] for event in events if event["event"] == "CaseJudged" and event["skipped"]]
    assert len(skipped) <= 12
