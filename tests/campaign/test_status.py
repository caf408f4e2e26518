"""`fuzz.status` over campaigns that ended, were killed or run, and what a long campaign writes."""

import fcntl
import json
from pathlib import Path

import pytest

from corpus import entry as corpus_entry
from corpus.entry import Entry
from fuzz import events
from fuzz.campaign.session import run_campaign
from fuzz.events import Bus, EventLog, Notice
from fuzz.run_store import EVENTS_FILE, LOCK_FILE, OLD_EVENTS_FILE
from fuzz.run_summary import RunSummary
from fuzz.status import status
from generators.errors import UserError
from tests.campaign.fakes import case, options, sampler
from tests.command import run_command

WRONG = {
    "match": "softmax",
    "verdict": "wrong_result",
    "applied_rewrites": ["_sfdp_pattern_5_inference"],
    "dynamo_same": False,
}


@pytest.mark.worker
def test_the_numbers_of_a_campaign_add_up_over_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_entry.write(Entry(case("exp")), tmp_path / "seeds" / "a.case.yaml")
    one, other = (options(tmp_path / name, "20x", rules=[WRONG]) for name in ("one", "other"))
    for given in (one, one, other):
        run_campaign(given, sampler("softmax"))
    capsys.readouterr()
    with (other.out / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status(one.out, other.out, json=tmp_path / "numbers.json")
    titles, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [str(one.out), str(other.out)]
    assert "budget spent" in rows[0] and " runs " in rows[1] and len({len(titles), *map(len, rows)}) <= 3
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert [run["running"] for run in numbers] == [False, True]
    assert [run["cases"] for run in numbers] == [40, 20]
    assert [run["new_findings"] for run in numbers] == [1, 1]
    assert numbers[0]["waiting_suspicions"] == 0 and numbers[0]["size_bytes"] > 10_000
    run = RunSummary.load(one.out)
    assert (run.counts.runs, run.cases, run.counts.verdicts["passes"].total()) == (2, 40, 40)


@pytest.mark.worker
def test_json_without_a_file_is_all_that_is_printed(tmp_path: Path) -> None:
    given = options(tmp_path, "2x")
    run_campaign(given, sampler())
    for arguments in ((given.out, "--json"), ("--json", "--", given.out)):
        (data,) = json.loads(run_command("fuzz.status", *arguments).stdout)
        assert (data["run"], data["cases"]) == (str(given.out), 2)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        status(tmp_path)
    with pytest.raises(UserError):
        status()


def test_events_of_a_long_campaign_take_bounded_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_LOG_BYTES", 1000)
    log = EventLog(tmp_path)
    bus = Bus([log])
    for number in range(200):
        bus.emit(Notice(text=f"number {number}"))
    bus.close()
    lines = [
        json.loads(line)
        for name in (OLD_EVENTS_FILE, EVENTS_FILE)
        for line in (tmp_path / name).read_text().splitlines()
    ]
    numbers = [int(line["text"].split()[1]) for line in lines]
    assert numbers == list(range(numbers[0], 200)) and 10 < len(numbers) < 40
    assert {path.name for path in tmp_path.iterdir()} == {EVENTS_FILE, OLD_EVENTS_FILE}
