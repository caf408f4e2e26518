"""Campaigns with the same `--corpus` save each bug once, as far as their experiments tell."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus import entry as corpus_entry
from corpus.entry import CASE_SUFFIX, Entry, Found
from corpus.ledger import Ledger
from fuzz.campaign import investigation_runner
from fuzz.campaign.investigation import Conclusion, Investigation
from fuzz.campaign.options import Options
from fuzz.campaign.session import run_campaign
from fuzz.known_bugs import identify
from tests.campaign.fakes import case, options, sampler
from tests.campaign.test_campaign import WRONG, events, found, rows
from triage.cluster.clusters import load_clusters

pytestmark = pytest.mark.worker

OTHER = {**WRONG, "match": "relu", "unless": ["noop_passes_off"]}


def after(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Do something when the first suspicion has been shrunk, or experiments on its minimum have been run."""
    acts = [act]

    def shrink(self: Investigation) -> Conclusion:
        made = run(self)
        if step == "shrinking" and acts:
            acts.pop()()
        return made

    def examine(*asked: Any, **options: Any) -> Any:
        made = identify(*asked, **options)
        if step == "experiments" and acts:
            acts.pop()()
        return made

    run = Investigation.run
    monkeypatch.setattr(Investigation, "run", shrink)
    monkeypatch.setattr(investigation_runner, "identify", examine)


def find_elsewhere(tmp_path: Path, kind: str) -> Entry:
    """A finding of a campaign with a corpus of its own, in a case that is minimal nowhere else."""
    given = options(tmp_path / "elsewhere", "2x", rules=[WRONG, OTHER])
    run_campaign(given, sampler(kind))
    (one,) = found(given)
    return corpus_entry.loads(corpus_entry.dumps(replace(one, case=case(kind, rows=7))))


def run_beside(given: Options, other: Entry, step: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of new findings of a campaign, during which another saves a finding."""
    after(monkeypatch, step, lambda: corpus_entry.save(other, given.corpus))
    ending = run_campaign(given, sampler("softmax"))
    assert ending.error is None
    return ending.new


@pytest.mark.parametrize("step", ["shrinking", "experiments"])
def test_a_bug_that_another_campaign_saves_meanwhile_is_known(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, given = find_elsewhere(tmp_path, "softmax"), options(tmp_path, "8x", rules=[WRONG])
    assert run_beside(given, other, step, monkeypatch) == 0
    assert [one.case.id for one in found(given)] == [other.case.id]
    (row,), outcomes = rows(given)
    assert (row.kind, row.case_id, row.count) == ("known", other.case.id, 4)
    assert outcomes == {"duplicate": 4}


@pytest.mark.parametrize("step", ["shrinking", "experiments"])
def test_another_bug_that_looks_alike_is_saved_too(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other, given = find_elsewhere(tmp_path, "relu"), options(tmp_path, "2x", rules=[WRONG, OTHER])
    assert run_beside(given, other, step, monkeypatch) == 1
    assert {one.case.ops[0].kind for one in found(given)} == {"relu", "softmax"}


def test_files_that_hold_no_finding_and_appear_meanwhile_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tmp_path, "2x", rules=[WRONG])

    def add_files() -> None:
        directory = given.corpus
        (directory / f"folder{CASE_SUFFIX}").mkdir()
        (directory / f"gone{CASE_SUFFIX}").symlink_to(tmp_path / "gone")
        (directory / f"endless{CASE_SUFFIX}").symlink_to("/dev/zero")
        (directory / f"empty{CASE_SUFFIX}").touch()
        (directory / f"binary{CASE_SUFFIX}").write_bytes(bytes(range(256)))
        (directory / f"half{CASE_SUFFIX}").write_text(corpus_entry.dumps(Entry(case("exp")))[:40])
        (directory / f".unfinished{CASE_SUFFIX}.tmp").touch()
        other = Found("wrong_result", "nonsense", failure={"kind": "of_another_version"})
        corpus_entry.save(Entry(case("sin"), found=other), directory)
        stranger = Found("verdict_of_another_version", "", rewrites=({"pattern": "x"},), numbers={"ratio": math.nan})
        corpus_entry.save(Entry(case("cos"), found=stranger), directory)

    after(monkeypatch, "shrinking", add_files)
    ending = run_campaign(given, sampler("softmax"))
    assert (ending.error, ending.new) == (None, 1)
    assert len(events(given, "Notice")) == 8


def test_the_findings_of_several_runs_are_clustered_with_their_counts(tmp_path: Path) -> None:
    runs = [options(tmp_path, "8x", rules=[WRONG], out=tmp_path / name) for name in ("second", "first")]
    for given in runs:
        run_campaign(given, sampler("softmax"))
    (one,) = load_clusters([given.out for given in runs], Ledger(tmp_path / "ledger.yaml"))
    assert not one.is_open
    assert [(finding.run, finding.met) for finding in one.findings] == [(tmp_path / "second", 8)]
