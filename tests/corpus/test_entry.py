"""Corpus entries and other files that a person names: kept whole, written at once or not at all, or refused."""

import contextlib
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from corpus.entry import (
    CASE_SUFFIX,
    Entry,
    Expectation,
    Found,
    dumps,
    load,
    load_all,
    load_directory,
    loads,
    record_seen,
    save,
    write,
)
from corpus.versions import sort_versions, spell_versions
from fuzz.campaign.session import _enter_directory
from fuzz.run_store import Results
from generators.errors import CaseError, UserError, UserErrors
from generators.sampling.sample import sample
from tests.command import run_command

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
    assert expectation.holds_for({"torch": "2.13.0"})
    assert expectation.holds_for({"torch": "2.13.0+cu130"})
    assert not expectation.holds_for({"torch": "2.14.0"})
    assert Entry(CASE).expectation == Expectation("pass")


@pytest.mark.parametrize(
    ("torch", "holds"),
    [("2.10.0", False), ("2.11.0", True), ("2.13.0+cpu", True), ("2.14.0.dev20260327+cu126", True), ("2.15.0", False)],
)
def test_the_versions_of_a_known_bug(torch: str, holds: bool) -> None:
    assert KNOWN.holds_for({"torch": torch}) is holds


def test_what_was_found_under_another_compiler_is_expected_in_the_versions_of_its_runtime() -> None:
    runtime = {"openvino": "2026.4.1", "numpy": "2.3.0"}
    entry = loads(dumps(Entry(CASE, found=replace(FOUND, subject="openvino", versions=runtime))))
    assert entry.package == "openvino"
    assert entry.spell_version({"torch": "2.13.0", **runtime}) == "openvino 2026.4.1"
    assert entry.expectation.holds_for({"torch": "2.15.0", **runtime})
    assert not entry.expectation.holds_for({"torch": "2.13.0", "openvino": "2025.4.0"})
    assert not entry.expectation.holds_for({"torch": "2.13.0"})
    # A bug of the exporter is one of torch, whatever runs the model.
    of_torch = replace(entry, expect=Expectation("known", versions="torch<2.15", subject="onnxruntime"))
    assert of_torch.spell_version({"torch": "2.13.0+cpu", **runtime}) == "2.13.0"
    assert of_torch.expectation.holds_for({"torch": "2.13.0"})


def test_versions_are_sorted_by_package_and_number() -> None:
    given = ["openvino 2026.4.1", "2.9.0", "openvino 2025.10.0", "openvino 2025.4.0", "2.13.0", "2.9.0"]
    found = ["2.9.0", "2.13.0", "openvino 2025.4.0", "openvino 2025.10.0", "openvino 2026.4.1"]
    assert sort_versions(given) == found
    assert spell_versions(found) == "torch 2.9.0, 2.13.0, openvino 2025.4.0, 2025.10.0, 2026.4.1"


def test_a_directory_is_searched_whole(tmp_path: Path) -> None:
    paths = {save(Entry(sample(1, i)), tmp_path / str(i)) for i in (3, 2)}
    (tmp_path / "readme.txt").write_text("not a case")
    assert list(load_directory(tmp_path)) == sorted(paths)
    assert load_directory(tmp_path / "nowhere") == {}


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name at least one case file"):
        load_all(())
    with pytest.raises(UserError, match=r"no \*\.case\.yaml under"):
        load_all((tmp_path,))
    with pytest.raises(UserError, match=r"gone\.case\.yaml: can't be read: No such file or directory"):
        load_all((tmp_path / "gone.case.yaml",))


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{kind}{CASE_SUFFIX}" for kind in ("pipe", "directory", "dangling", "loop", "huge", "socket")]
    pipe, directory, dangling, loop, huge, bound = paths
    os.mkfifo(pipe)
    directory.mkdir()
    dangling.symlink_to("nowhere")
    loop.symlink_to(loop.name)
    os.truncate(os.open(huge, os.O_CREAT | os.O_WRONLY), 1 << 33)
    with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as one:
        one.bind(bound.name)
    for path in (*paths, Path("/dev/zero")):
        with pytest.raises(UserError, match=re.escape(f"{path}: ")):
            load(path)
    with pytest.raises(UserErrors) as error:
        load_all((tmp_path,))
    assert [line.partition(":")[0] for line in error.value.args] == sorted(map(str, paths))


def test_many_bad_files_are_told_in_a_few_lines(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}{CASE_SUFFIX}").write_text("case_format: 2\n")
    (tmp_path / f".30{CASE_SUFFIX}.tmp").write_text("")  # left by a kill
    for read in (load_all, load_directory):
        with pytest.raises(UserErrors) as error:
            read((tmp_path,) if read is load_all else tmp_path)  # type: ignore[arg-type]
        assert len(error.value.args) == 11
        assert error.value.args[0].startswith(f"{tmp_path}/00{CASE_SUFFIX}:1: ")
        assert error.value.args[-1] == "and 10 more bad files"


def test_a_file_that_a_kill_left_is_replaced_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / Entry(CASE).file_name
    path.with_name(f".{path.name}.tmp").write_text("half a c")
    assert load_directory(tmp_path) == {}
    assert save(Entry(CASE), tmp_path) == path
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    real, link = tmp_path / "real.case.yaml", tmp_path / "link.case.yaml"
    link.symlink_to(real.name)
    write(Entry(CASE), link)
    assert link.is_symlink() and load(real) == Entry(CASE)


def test_a_place_that_can_not_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't be written: (Not a directory|File exists)"):
        save(Entry(CASE), tmp_path / "file")
    taken = tmp_path / Entry(CASE).file_name
    taken.mkdir()
    with pytest.raises(UserError, match="can't be written: Is a directory"):
        save(Entry(CASE), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["file", taken.name])


PLAIN = dumps(Entry(CASE))


def test_verdicts_are_added_by_version_and_the_case_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.case.yaml"
    path.write_text(f'{PLAIN}seen: {{"2.13.0": ok}}\n')
    record_seen(path, {"2.13.0": "wrong_result", "2.12.1": "ok"})
    assert load(path) == Entry(CASE, seen={"2.12.1": "ok", "2.13.0": "wrong_result"})
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


@pytest.mark.parametrize("name", [b"\x1b[31m\x9b", b"\xe2\x80\xae.yaml", b"\xff\xfe", b"a\rb", b"a\nb"])
def test_names_reach_the_terminal_without_what_controls_it(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name + CASE_SUFFIX.encode())
    done = run_command("fuzz.show", path)
    assert done.returncode == 2
    assert done.stderr.removesuffix("\n").isprintable()
    path.write_text("case_format: 1")
    assert run_command("fuzz.replay", tmp_path).stderr.removesuffix("\n").isprintable()


def test_a_run_that_was_killed_before_it_had_a_store_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with _enter_directory(tmp_path), Results(tmp_path) as results:
        assert not results.findings()
