"""Budgets, stop conditions, disks and GPUs of a campaign."""

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

from fuzz.ask.worker_config import WorkerConfig
from fuzz.campaign.options import (
    Budget,
    DiskFull,
    StopCondition,
    StopReason,
    list_gpus,
    require_space,
    translate_disk_error,
)
from fuzz.durations import format_duration, parse_duration
from generators.errors import UserError
from tests.campaign.fakes import options, setup


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", Budget(seconds=90)),
        ("10m", Budget(seconds=600)),
        ("1h30m", Budget(seconds=5400)),
        ("1h1m1.5s", Budget(seconds=3661.5)),
        ("500x", Budget(cases=500)),
    ],
)
def test_time_and_cases_are_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        "10",
        "1.5",
        "",
        "x",
        "0s",
        "0x",
        "m",
        "10 minutes",
        "-5s",
        "5s3m",
        "1e3s",
        "nan",
        "infs",
        "99999999999h",
        "9999999999x",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(UserError, match=r"expected 90s|longer than 0 s|at least 1x"):
        Budget.parse(text)


def test_a_bare_number_lacks_its_unit() -> None:
    with pytest.raises(UserError, match=r"timeout '60'.*the unit is missing; expected 60s"):
        parse_duration("60", "timeout")


@pytest.mark.parametrize("text", ["45s", "3m20s", "1h05m", "2h", "5m", "1.5s"])
def test_durations_are_spelled_as_they_are_read(text: str) -> None:
    assert format_duration(parse_duration(text, "it")) == text


def test_the_first_reason_to_stop_counts() -> None:
    control = StopCondition(Budget(cases=3))
    assert (control.is_over, control.reason) == (False, StopReason.BUDGET)
    control.stop(StopReason.INTERRUPTED)
    control.kill()
    assert (control.is_over, control.is_overdue, control.reason) == (True, True, StopReason.INTERRUPTED)


def test_a_budget_of_time_ends_it() -> None:
    control = StopCondition(Budget(seconds=1e-9))
    control.begin()
    assert control.is_over and not control.is_stopped and control.seconds_left < 0


@pytest.mark.parametrize("error", [errno.EFBIG, errno.ENOSPC])
def test_a_file_at_its_largest_size_is_an_error_of_the_disk(tmp_path: Path, error: int) -> None:
    cause = OSError(error, os.strerror(error))
    assert isinstance(translate_disk_error(cause, tmp_path), DiskFull)
    wrapped = UserError("case.yaml: can't be written")
    wrapped.__cause__ = cause
    assert "case.yaml" in str(translate_disk_error(wrapped, tmp_path))


def test_a_limit_on_files_below_those_of_compilers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 * 2**10, resource.RLIM_INFINITY))
    with pytest.raises(UserError):
        WorkerConfig.from_options(None, "cpu", (), "60s", 4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    WorkerConfig.from_options(None, "cpu", (), "60s", 4096)


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
    bound = [given.bind(setup(), number).environment()["CUDA_VISIBLE_DEVICES"] for number in range(4)]
    assert bound == ["GPU-a", "GPU-b", "GPU-c", "GPU-a"]
