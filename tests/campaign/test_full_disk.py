"""A campaign whose disk fills up, or whose time ends, finds each bug once."""

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz.attribution.attribute import find_cause
from fuzz.campaign import examination, investigation_runner
from fuzz.campaign.examination import examine_minimum
from fuzz.campaign.options import DiskFull, StopCondition, StopReason
from fuzz.campaign.session import run_campaign
from generators.errors import UserError
from generators.program.case import Case
from tests.campaign.fakes import case, options, sampler
from tests.campaign.test_campaign import WRONG, events, found, rows

pytestmark = pytest.mark.worker

SMALL, LARGE = case("exp", "softmax", rows=7), case("exp", "softmax", "tanh", rows=7)


def test_a_disk_that_fills_up_ends_the_campaign_and_costs_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tmp_path, budget="200x", rules=[WRONG])
    cases, usage = sampler("softmax"), shutil.disk_usage

    def sample(seed: int, index: int, **_: object) -> Case:
        if index == 150:
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=2**20))
        return cases(seed, index)

    assert isinstance(run_campaign(given, sample).error, DiskFull)
    assert len(found(given)) == 1
    (ended,) = events(given, "CampaignEnded")
    assert ended["reason"] == StopReason.DISK_FULL


@pytest.mark.parametrize("end", ["nothing", "disk", "budget"])
@pytest.mark.parametrize(("one", "other"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_experiments_that_end_early_double_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, one: Case, other: Case
) -> None:
    in_a_hurry = options(tmp_path, "1x", rules=[WRONG], shrink_seconds=0.0)
    assert run_campaign(in_a_hurry, lambda *_, **__: one).new == 1
    (first,) = found(in_a_hurry)
    assert len(first.case.ops) == len(one.ops)
    usage = shutil.disk_usage
    given = options(tmp_path, "1x", rules=[WRONG])
    with monkeypatch.context() as patched:

        def find(*asked: Any) -> Any:
            if end == "budget":
                patched.setattr(StopCondition, "seconds_left", 0.0)
            with monkeypatch.context() as during:
                if end == "disk":
                    during.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=0))
                return find_cause(*asked)

        patched.setattr(examination, "find_cause", find)
        ending = run_campaign(given, lambda *_, **__: other)
    assert isinstance(ending.error, DiskFull) is (end == "disk")
    assert rows(given)[1].get("duplicate", 0) == (end == "nothing")
    run_campaign(given, lambda *_, **__: other)
    assert found(given) == [first]
    assert rows(given)[1] == {"finding": 1, "duplicate": 2}


def test_a_finding_whose_file_is_not_written_is_known_to_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{**WRONG, "match": "exp", "applied_rewrites": ["one"]}, {**WRONG, "applied_rewrites": ["other"]}]
    cases = [case("exp"), case("softmax")]
    given = options(tmp_path, "8x", rules=rules, workers=2)
    both, examined = threading.Barrier(2, timeout=30.0), set[int]()
    write, failed = corpus_entry.write, list[Path]()

    def examine_both(*asked: Any) -> Any:
        answer = examine_minimum(*asked)
        if threading.get_ident() not in examined:
            examined.add(threading.get_ident())
            both.wait()
        return answer

    def write_later(entry: Entry, path: Path) -> Path:
        if failed:
            return write(entry, path)
        failed.append(path)
        raise UserError(f"{path}: can't be written") from OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(investigation_runner, "examine_minimum", examine_both)
        patched.setattr(corpus_entry, "write", write_later)
        assert isinstance(run_campaign(given, lambda _, index, **__: cases[index % 2]).error, DiskFull)
    assert not failed[0].exists()
    run_campaign(given, lambda _, index, **__: cases[index % 2])
    assert list(given.corpus.iterdir()) == failed
