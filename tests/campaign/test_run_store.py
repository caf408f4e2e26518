"""Results that another process has locked, that are damaged, or that are something else: one line, and nothing lost."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fuzz import run_store
from fuzz.campaign.options import StopReason
from fuzz.campaign.session import run_campaign
from fuzz.run_store import EVENTS_FILE, LOCK_FILE, RESULTS_FILE, StoreLocked
from generators.errors import UserError
from generators.program.case import Case
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG, events, found
from tests.command import run_command

pytestmark = pytest.mark.worker


def test_results_that_another_process_locks_end_the_campaign_and_cost_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "_LOCK_SECONDS", 0.1)
    given = options(tmp_path, budget="30x", rules=[WRONG])
    cases = sampler("softmax")
    with closing(sqlite3.connect(tmp_path / "unused", check_same_thread=False)) as other:

        def sample(seed: int, index: int, **_: object) -> Case:
            if index == 12 and not other.in_transaction:
                other.execute("ATTACH ? AS results", (str(given.out / RESULTS_FILE),))
                other.execute("BEGIN IMMEDIATE")
                other.execute("UPDATE results.meta SET value = value")
            return cases(seed, index)

        assert isinstance(run_campaign(given, sample).error, StoreLocked)
        (ended,) = events(given, "CampaignEnded")
        assert ended["reason"] == StopReason.LOCKED
        with pytest.raises(StoreLocked):
            run_campaign(given, sample)
    assert run_campaign(given, cases).error is None
    assert len(found(given)) == 1
    judged = [event["index"] for event in events(given, "CaseJudged")]
    assert sorted(judged) == list(range(len(judged)))


def test_commands_read_no_results_that_are_locked_or_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "_LOCK_SECONDS", 0.1)
    given = options(tmp_path, budget="2x")
    run_campaign(given, sampler())
    with closing(sqlite3.connect(given.out / RESULTS_FILE)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE meta SET value = value")
        locked = run_command("fuzz.status", given.out)
    (given.out / RESULTS_FILE).write_bytes(b"")
    empty = run_command("fuzz.status", given.out)
    assert [(done.returncode, done.stdout, done.stderr.count("\n")) for done in (locked, empty)] == [(2, "", 1)] * 2
    assert "locked" in locked.stderr
    assert "empty" in empty.stderr


@pytest.mark.parametrize("content", ["", "PRAGMA journal_mode=WAL"])
def test_a_run_whose_results_are_gone_is_damaged_and_a_run_that_wrote_none_begins(tmp_path: Path, content: str) -> None:
    given = options(tmp_path, budget="2x")

    def empty() -> None:
        (given.out / RESULTS_FILE).write_bytes(b"")
        if content:  # as the copy of a run has, if its log was left behind
            with closing(sqlite3.connect(given.out / RESULTS_FILE)) as store:
                store.execute(content)

    given.out.mkdir()
    (given.out / LOCK_FILE).touch()
    empty()
    run_campaign(given, sampler())
    assert len(events(given, "CaseJudged")) == 2
    empty()
    before = (given.out / EVENTS_FILE).read_bytes()
    with pytest.raises(UserError, match="damaged"):
        run_campaign(given, sampler())
    assert (given.out / EVENTS_FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("make", "said"), [("PRAGMA user_version=77", "store of format 77"), ("CREATE TABLE of_others (x)", "format 0")]
)
def test_a_store_of_something_else_is_refused(tmp_path: Path, make: str, said: str) -> None:
    given = options(tmp_path)
    given.out.mkdir()
    (given.out / RESULTS_FILE).write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(UserError, match="can't be opened"):
        run_campaign(given, sampler())
    (given.out / RESULTS_FILE).unlink()
    with closing(sqlite3.connect(given.out / RESULTS_FILE)) as store:
        store.execute(make)
    with pytest.raises(UserError, match=said):
        run_campaign(given, sampler())
