"""Verdicts by torch version, written into case files."""

from pathlib import Path

import pytest

from corpus.entry import Entry, dumps, load, record_seen
from generators.errors import CaseError
from tests.campaign.fakes import case

PLAIN = dumps(Entry(case("exp")))


def test_verdicts_are_added_by_version_and_the_case_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.case.yaml"
    path.write_text(f'{PLAIN}seen: {{"2.13.0": ok}}\n')
    record_seen(path, {"2.13.0": "wrong_result", "2.12.1": "ok"})
    assert load(path) == Entry(case("exp"), seen={"2.12.1": "ok", "2.13.0": "wrong_result"})
    assert list(load(path).seen) == ["2.12.1", "2.13.0"]


def test_nothing_new_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.case.yaml"
    path.write_text(f'{PLAIN}seen:   {{"2.13.0": ok}}\n')
    record_seen(path, {"2.13.0": "ok"})
    assert "seen:   {" in path.read_text()


def test_a_file_that_is_no_case_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.case.yaml"
    path.write_text("case_format: 9\n")
    with pytest.raises(CaseError):
        record_seen(path, {"2.13.0": "ok"})
    assert path.read_text() == "case_format: 9\n"
