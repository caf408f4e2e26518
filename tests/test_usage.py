"""Wrong options, files and places are refused in one line, before any work: each row of usage_mistakes.yaml."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from corpus.entry import CASE_SUFFIX, Entry, Expectation, save
from corpus.ledger import Ledger
from corpus.ledger import save as save_ledger
from fuzz.run_database import RESULTS_FILE
from fuzz.run_store import Results
from generators.sampling.sample import sample
from tests.campaign.fakes import write_python
from tests.command import run_command

TABLE: dict[str, list[tuple[str, str]]] = yaml.safe_load(Path(__file__).with_name("usage_mistakes.yaml").read_text())
ROWS = [(f"{command} {given}", words) for command, rows in TABLE.items() for given, words in rows]


@pytest.fixture
def places(tmp_path: Path) -> Mapping[str, str]:
    """What words in capitals stand for."""
    made = {name: tmp_path / name.lower() for name in ("PIPES", "RUN", "NO_STORE", "FOUND", "BAD")}
    for directory in made.values():
        directory.mkdir()
    made["PIPE"] = made["PIPES"] / f"pipe{CASE_SUFFIX}"
    for pipe in (made["PIPE"], made["NO_STORE"] / RESULTS_FILE):
        os.mkfifo(pipe)
    Results(made["RUN"]).close()
    (made["BAD"] / "settings.toml").write_text("[build]\nnone = 1\n")
    made["CASE"] = save(Entry(sample(1, 1), expect=Expectation("known")), made["FOUND"])
    save_ledger(Ledger(tmp_path / "ledger.yaml"))
    made["PYTHON"] = write_python(tmp_path / "python")
    made["OLD"] = write_python(tmp_path / "old", unusable="/opt/old has torch 2.7.0; 2.11 or later is needed")
    return {name: str(path) for name, path in made.items()} | {"SELF": sys.executable}


@pytest.mark.worker
@pytest.mark.parametrize(("line", "words"), ROWS, ids=[line for line, _ in ROWS])
def test_a_mistake_is_one_line_and_exit_code_2(
    line: str, words: str, places: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(word: str) -> str:
        first, slash, rest = word.partition("/")
        return f"{places.get(first, first)}{slash}{rest}"

    names_interpreter = bool({"--python", "--against"} & {*line.split()})
    if not names_interpreter:
        monkeypatch.setattr(
            "fuzz.ask.worker_process.WorkerProcess.start", lambda _: pytest.fail("a worker was started")
        )
    before = {*tmp_path.rglob("*")}
    command, *given = map(fill, shlex.split(line))
    done = run_command(command, *given, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: ") and fill(words) in done.stderr
    assert not [*tmp_path.glob("runs/*")]
    assert names_interpreter or {*tmp_path.rglob("*")} - {tmp_path / "runs"} == before
