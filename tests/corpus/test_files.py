"""Files that a person names: what is not a regular file, what can't be written, and what names do to a terminal."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from corpus.entry import SUFFIX, Entry, Expectation, save
from corpus.ledger import Ledger
from corpus.ledger import save as save_ledger
from fuzz.campaign.session import _enter_directory
from fuzz.run_store import RESULTS_FILE, Results
from generators.sampling.sample import sample
from tests.command import run_command


@pytest.fixture
def places(tmp_path: Path) -> Mapping[str, Path]:
    """By name: a pipe and a directory with one in it, a case, a run, and a run whose store is a pipe."""
    names = ("pipes", "run", "no_store", "found")
    made = {name: tmp_path / name for name in names}
    for name in names:
        made[name].mkdir()
    made["pipe"] = made["pipes"] / f"pipe{SUFFIX}"
    for pipe in (made["pipe"], made["no_store"] / RESULTS_FILE):
        os.mkfifo(pipe)
    Results(made["run"]).close()
    made["case"] = save(Entry(sample(1, 1), expect=Expectation("known")), made["found"])
    made["ledger"] = tmp_path / "ledger.yaml"
    save_ledger(Ledger(made["ledger"]))
    return made


@pytest.mark.parametrize(
    "command",
    [
        "fuzz.show pipe",
        "fuzz.show pipes",
        "fuzz.replay pipe",
        "fuzz.shrink pipe",
        "fuzz.compare pipe --record",
        "fuzz.run --budget 1x --seeds pipes --out new --corpus found",
        "fuzz.run --budget 1x --ledger pipe --out new --corpus found",
        "triage.cluster pipe",
        "triage.cluster case --ledger pipe",
        "triage.page run --ledger pipe",
        "triage.page no_store",
        "fuzz.status no_store",
        "fuzz.status run pipes",
        "triage.report pipe --out new",
        "triage.report case --ledger pipe --out new",
    ],
)
def test_a_pipe_is_refused_at_once(command: str, places: Mapping[str, Path], tmp_path: Path) -> None:
    _assert_refused(command, places, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "fuzz.shrink case --out case",
        "fuzz.compare case --record --json found",
        "fuzz.compare case --record --json case/new",
        "fuzz.status run --json case/new",
        "fuzz.run --budget 1x --out case --corpus found",
        "fuzz.run --budget 1x --out new --corpus case",
        "triage.cluster case --update --ledger found",
        "triage.cluster case --update --ledger case/new",
        "triage.page run --out found",
        "triage.report case --out case",
    ],
)
def test_a_target_that_can_not_be_written_is_told_before_any_work(
    command: str, places: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzz.ask.worker_process.WorkerProcess.start", lambda _: pytest.fail("a worker was started"))
    _assert_refused(command, places, tmp_path)


@pytest.mark.parametrize("command", ["triage.page gone", "triage.cluster gone --update"])
def test_what_is_refused_makes_nothing(command: str, places: Mapping[str, Path], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    _assert_refused(command, places, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def _assert_refused(command: str, places: Mapping[str, Path], directory: Path) -> None:
    name, *words = command.split()
    given = [str(places[first]) + word[len(first) :] if (first := word.partition("/")[0]) in places else word
             for word in words]  # fmt: skip
    done = run_command(name, *given, cwd=directory)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", [b"\x1b[31m\x9b", b"\xe2\x80\xae.yaml", b"\xff\xfe", b"a\rb", b"a\nb"])
def test_names_reach_the_terminal_without_what_controls_it(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name + SUFFIX.encode())
    done = run_command("fuzz.show", path)
    assert done.returncode == 2
    assert done.stderr.removesuffix("\n").isprintable()
    path.write_text("case_format: 1")
    assert run_command("fuzz.replay", tmp_path).stderr.removesuffix("\n").isprintable()


def test_a_run_that_was_killed_before_it_had_a_store_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with _enter_directory(tmp_path), contextlib.closing(Results(tmp_path)) as results:
        assert not results.findings()
