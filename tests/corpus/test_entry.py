"""Corpus entries: kept whole, written at once or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus.entry import Entry, Expectation, Found, case_files, dumps, load, load_all, load_directory, loads, save
from generators.errors import CaseError, UserError
from generators.sampling.sample import sample

CASE = sample(1, 1)
FOUND = Found(
    verdict="wrong_result",
    subject="inductor",
    fired=("_sfdp_pattern_5_inference", "pad_mm"),
    torch="2.13.0",
    device="cpu",
    message="output 0: row [0, 1]: error 0.3 against float64, eager's 2e-07",
    numbers={"ratio": 1.2e6, "scale": 5e-324, "compiled_error": float("inf")},
    date="2026-05-01T12:00:00Z",
)
KNOWN = Expectation("known", "https://example.org/1", ">=2.11,<2.15", "inductor", "wrong_result", "cpu")
FULL = Entry(CASE, "Two lines:\n- of text\n", KNOWN, FOUND, {"2.12.0": "ok", "2.14": "wrong_result"})


@pytest.mark.parametrize("entry", [Entry(CASE), FULL, Entry(CASE, "no"), Entry(CASE, found=Found("timeout", "passes"))])
def test_an_entry_comes_back_unchanged(entry: Entry, tmp_path: Path) -> None:
    path = save(entry, tmp_path / "new" / "corpus")
    assert load(path) == entry
    assert load(path).case.id == entry.case.id
    assert [p.name for p in path.parent.iterdir()] == [entry.file_name]


def test_broken_text_of_a_worker_is_still_saved(tmp_path: Path) -> None:
    path = save(Entry(CASE, found=replace(FOUND, message="bad \udc80 byte \x00 end")), tmp_path)
    found = load(path).found
    assert found is not None
    assert found.message == "bad ? byte \x00 end"


def test_the_name_says_verdict_and_case() -> None:
    assert FULL.file_name == f"wrong_result-{CASE.id}.case.yaml"
    assert Entry(CASE, expect=Expectation("rounding")).file_name == f"rounding-{CASE.id}.case.yaml"
    assert Entry(CASE).file_name == f"case-{CASE.id}.case.yaml"


def test_what_was_found_is_expected_again_in_its_version_only() -> None:
    expectation = Entry(CASE, found=replace(FOUND, torch="2.13.0+cpu")).expectation
    assert (expectation.status, expectation.verdict, expectation.subject) == ("known", "wrong_result", "inductor")
    assert expectation.holds_for("2.13.0")
    assert expectation.holds_for("2.13.0+cu130")
    assert not expectation.holds_for("2.14.0")
    assert Entry(CASE).expectation == Expectation("pass")


@pytest.mark.parametrize(
    ("torch", "holds"),
    [("2.10.0", False), ("2.11.0", True), ("2.13.0+cpu", True), ("2.14.0.dev20260327+cu126", True), ("2.15.0", False)],
)
def test_the_versions_of_a_known_bug(torch: str, holds: bool) -> None:
    assert KNOWN.holds_for(torch) is holds


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("status: known", "status: fails", "expect.status: 'fails' is not one of pass, known, rounding"),
        ('versions: ">=2.11,<2.15"', "versions: newer", "expect.versions: 'newer' is not a version specifier"),
        ("verdict: wrong_result", "verdict: 7", "expect.verdict: expected text, got 7; quote it"),
        ("  verdict: wrong_result", "  verdict: Wrong!", "'Wrong!' is not a verdict such as wrong_result"),
        ("  device: cpu", "  device: tpu", "device: 'tpu' is not one of cpu, cuda"),
        ("torch: 2.13.0", "torch: newest", "found.torch: 'newest' is not a version such as 2.13.0"),
        ("torch: 2.13.0", "torch: 2.13", "found.torch: expected text, got 2.13; quote it"),
        ("ratio: 1200000.0", "ratio: 1e6", "found.numbers.ratio: '1e6' reads differently"),
        ("found:", "finding:", "finding: unknown key; expected case_format"),
    ],
)
def test_a_mistake_is_told_in_one_line(old: str, new: str, expected: str) -> None:
    text = dumps(FULL)
    assert old in text
    with pytest.raises(CaseError) as error:
        loads(text.replace(old, new, 1), "f")
    assert expected in str(error.value)


def test_a_directory_is_searched_whole(tmp_path: Path) -> None:
    paths = {save(Entry(sample(1, i)), tmp_path / str(i)) for i in (3, 2)}
    (tmp_path / "readme.txt").write_text("not a case")
    assert set(load_directory(tmp_path)) == paths
    assert list(case_files(tmp_path)) == sorted(paths)
    assert load_directory(tmp_path / "nowhere") == {}


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name at least one case file"):
        load_all(())
    with pytest.raises(UserError, match=r"no \*\.case\.yaml under"):
        load_all((tmp_path,))
    with pytest.raises(CaseError, match=r"gone\.case\.yaml: can't be read: No such file or directory"):
        load_all((tmp_path / "gone.case.yaml",))


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(CaseError, match=r"/dev/zero: larger than 1048576 bytes"):
        load(Path("/dev/zero"))


def test_a_place_that_can_not_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't be written: (Not a directory|File exists)"):
        save(Entry(CASE), tmp_path / "file")
    taken = tmp_path / Entry(CASE).file_name
    taken.mkdir()
    with pytest.raises(UserError, match="can't be written: Is a directory"):
        save(Entry(CASE), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["file", taken.name])
