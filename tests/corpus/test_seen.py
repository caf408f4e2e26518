"""Verdicts by torch version, written into case files."""

from pathlib import Path

import pytest

from corpus.entry import Entry, dumps, load, record_seen
from generators.errors import CaseError, UserError
from tests.campaign.fakes import case

PLAIN = dumps(Entry(case("exp")))


@pytest.mark.parametrize(
    "written",
    [
        PLAIN,
        f"# Why.\n{PLAIN}",
        f'{PLAIN}seen: {{"2.11.0": ok}}\n',
        f'seen:\n  # once\n  "2.11.0": ok\n{PLAIN}',
        f'{PLAIN}seen: {{\n  "2.11.0": ok,\n}}\n# The end.\n',
        PLAIN.rstrip("\n"),
        f"{PLAIN}note: |\n  Why.\n\n# The end.\n",
        f"{PLAIN}seen:  # once\n  2.11.0: ok\n\n# The end.\n",
    ],
)
def test_the_rest_of_the_file_stays(tmp_path: Path, written: str) -> None:
    path = tmp_path / "a.case.yaml"
    path.write_text(written)
    before = load(path)
    record_seen(path, {"2.13.0": "wrong_result", "2.12.1": "ok"})
    entry = load(path)
    assert entry.case == before.case
    assert list(entry.seen.items()) == [*before.seen.items(), ("2.12.1", "ok"), ("2.13.0", "wrong_result")]
    assert all(line in path.read_text() for line in written.splitlines() if line.startswith("#"))
    assert all(line in path.read_text() for line in PLAIN.splitlines())


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


def test_a_file_on_one_line_is_refused_with_what_to_add(tmp_path: Path) -> None:
    path = tmp_path / "a.case.yaml"
    written = (
        "{case_format: 1, dims: {B: 2}, inputs: {x: {shape: [B], dtype: float32}}, "
        "ops: [{name: out, op: exp, args: [x]}], returns: [out]}  # by hand"
    )
    path.write_text(written)
    with pytest.raises(UserError, match="add by hand"):
        record_seen(path, {"2.13.0": "ok"})
    assert path.read_text() == written
