import shutil
from pathlib import Path

import pytest

from fuzz.campaign.options import Budget, DiskFull, StopCondition, StopReason, list_gpus, require_space
from tests.campaign.fakes import options, setup


def test_the_first_reason_to_stop_counts() -> None:
    control = StopCondition(Budget(cases=3))
    assert (control.is_over, control.reason) == (False, StopReason.BUDGET)
    control.stop(StopReason.INTERRUPTED)
    control.kill()
    assert (control.is_over, control.is_killed, control.reason) == (True, True, StopReason.INTERRUPTED)


def test_a_budget_of_time_ends_it() -> None:
    control = StopCondition(Budget(seconds=1e-9))
    control.begin()
    assert control.is_over and not control.is_stopped and control.seconds_left < 0


def test_only_the_disk_says_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**30))
    require_space(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    with pytest.raises(DiskFull):
        require_space(tmp_path)


def test_workers_take_turns_at_the_gpus_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    given = options(tmp_path, gpus=list_gpus())
    bound = [given.bind(setup(), number).environment(None)["CUDA_VISIBLE_DEVICES"] for number in range(4)]
    assert bound == ["GPU-a", "GPU-b", "GPU-c", "GPU-a"]
