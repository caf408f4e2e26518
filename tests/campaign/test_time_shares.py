"""How a campaign divides its time between investigations and new cases, under a clock that only checks move on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.campaign.crew import CampaignEvaluator
from fuzz.campaign.session import run_campaign
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG, events, found

pytestmark = pytest.mark.worker

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


def test_a_long_investigation_leaves_the_only_worker_time_for_cases(tmp_path: Path, clock: SimpleNamespace) -> None:
    given = options(tmp_path, budget="180s", rules=[WRONG], shrink_seconds=60.0)
    run_campaign(given, sampler("softmax", every=1))
    cases = len(events(given, "CaseJudged"))
    assert clock.now >= 180
    assert cases * CHECK_SECONDS >= 0.5 * (180 - 60) - CHECK_SECONDS  # The last third is for what was begun.
    assert len(found(given)) == 1


def test_a_short_investigation_goes_before_new_cases(tmp_path: Path, clock: SimpleNamespace) -> None:
    given = options(tmp_path, budget="3600s", rules=[WRONG], shrink_seconds=600.0, fail_fast=True)
    run_campaign(given, sampler("softmax", every=1))
    assert len(events(given, "CaseJudged")) <= 2
    assert clock.now < 600
    assert len(found(given)) == 1
