"""Our own parsers: what must hold of any bytes that one of them reads, on inputs that are kept and mutated."""

import contextlib
import importlib.util
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from corpus import entry as corpus_entry
from corpus import ledger, strict_yaml
from fuzz import status
from fuzz.check.run import value_files
from fuzz.protocol import ProtocolError, Result, from_json
from fuzz.protocol.render import describe
from fuzz.replay_result import describe_result, list_numbers, read_recorded_result
from fuzz.run_database import RESULTS_FILE
from fuzz.run_store import _FORMAT, _TABLES, Results
from fuzz.run_summary import RunSummary
from generators.errors import CaseError, UserError
from generators.program.attention_stub import emit_attention_stub
from generators.program.emit import source
from generators.program.simplicity import sort_key
from generators.program.value_format import FormatError
from triage.cluster.clusters import load_clusters
from triage.page import make_page

INPUTS = Path(__file__).parent / "inputs"
SHARED = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""In memory, since atomic writes wait for the disk."""


def check_case(data: bytes) -> None:
    """A case file is refused with CaseError, or comes back as it was and is a program that compiles."""
    try:
        entry = corpus_entry.loads(data, "input")
    except CaseError as error:
        assert "\n" not in str(error), error
        return
    text = corpus_entry.dumps(entry)
    again = corpus_entry.loads(text, "written")
    assert corpus_entry.dumps(again) == text and again.case.id == entry.case.id, text
    compile(source(entry.case), "case", "exec", dont_inherit=True)
    stub = emit_attention_stub(entry.case)
    if stub is not None:
        compile(stub, "stub", "exec", dont_inherit=True)
    sort_key(entry.case)
    _ = entry.subject, entry.device, entry.file_name, entry.expectation.holds_for({"torch": "2.13.0"})
    with contextlib.suppress(UserError):
        describe(read_recorded_result(entry))


def check_ledger(data: bytes) -> None:
    """A ledger is refused with UserError, or comes back as it was from a new file and from an edit of its own."""
    with tempfile.TemporaryDirectory(dir=SHARED) as directory:
        path = Path(directory) / "ledger.yaml"
        try:
            read = ledger.loads(data, path)
        except UserError as error:
            assert "\n" not in str(error), error
            return
        ledger.save(read)
        assert ledger.load(path) == read, path.read_text()
        path.write_bytes(data)
        ids = (f"{number:012x}" for number in range(len(read.bugs)))
        met = tuple(replace(bug, findings=(next(ids),), versions=("9.0.0",)) for bug in read.bugs)
        try:
            ledger.save(replace(read, bugs=met))
        except UserError:
            return
        assert ledger.load(path).bugs == met, path.read_text()


def check_message(data: bytes) -> None:
    """A line is refused with ProtocolError, or is a message that comes back as it was and that words can be had of."""
    try:
        message = from_json(data)
    except ProtocolError as error:
        assert "\n" not in str(error), error
        return
    line = message.to_json()
    assert from_json(line).to_json() == line, line
    if isinstance(message, Result):
        case = corpus_entry.load(INPUTS / "case" / "known.yaml").case
        describe_result(message, case)
        for one in message.results:
            list_numbers(one)


def check_values(data: bytes) -> None:
    """A file of given values is refused with FormatError, or is a tensor that comes back as it was."""
    try:
        read = value_files.parse(data)
    except FormatError as error:
        assert "\n" not in str(error), error
        return
    assert read.nbytes < len(data)
    assert value_files.serialize(value_files.parse(value_files.serialize(read))) == value_files.serialize(read)


_COLUMNS = {"counts": 2, "events": 2, "coverage": 3, "queue": 4, "judged": 1, "suspicions": 4, "findings": 8}


def check_rows(data: bytes) -> None:
    """A run directory is refused with UserError, or read; the input has its rows as JSON."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = data
    rows = given if isinstance(given, Mapping) else {}
    with tempfile.TemporaryDirectory(dir=SHARED) as directory:
        run = Path(directory)
        _write_store(run / RESULTS_FILE, rows)
        with contextlib.suppress(UserError), Results.open_readonly(run) as results:
            for read in (
                results.findings,
                lambda: results.is_judged("0123456789ab"),
                results.count_coverage,
                lambda: list(results.waiting()),
                lambda: list(results.queue()),
                results.list_events,
                lambda: make_page(RunSummary.load(run)),
                lambda: status.describe_run(run),
                lambda: load_clusters([run], ledger.Ledger(ledger.NONE)),
            ):
                with contextlib.suppress(UserError):
                    read()


def _write_store(path: Path, rows: Mapping[str, Any]) -> None:
    store = sqlite3.connect(path)
    store.executescript(f"PRAGMA synchronous=OFF; {_TABLES}; PRAGMA user_version={_FORMAT}")
    store.execute("DELETE FROM counts")
    for table, count in _COLUMNS.items():
        for row in _list(rows.get(table)):
            values = [*map(_column, _list(row)), *[None] * count][:count]
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                store.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * count)})", values)
    store.commit()
    store.close()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _column(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "case": check_case,
    "ledger": check_ledger,
    "message": check_message,
    "rows": check_rows,
    "values": check_values,
}
_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63), 10**30, 0.0, -0.0, 1.5, 1e-300, 1e308),
    *(float("inf"), float("-inf"), float("nan"), "inf", "", " ", "a", "x\ny", "\x1b[31m", "\u202e", "\ud800", "\0"),
    *("2.13.0", "2.13.0+cpu", ">=2.11", "case 1", "3*H*D + 1", "S", "1e5", "0x1", "no", "nan", "{}", "[]", [], {}),
)


def mutate(data: bytes, most: int, seed: int, *, as_yaml: bool) -> bytes:
    """An input made of one: its tree with a few places changed, or its bytes."""
    r = random.Random(seed)
    if r.random() < 0.7:
        try:
            tree = strict_yaml.parse(data, "input").data if as_yaml else json.loads(data)
        except (ValueError, RecursionError):
            tree = None
        if isinstance(tree, (dict, list)):
            for _ in range(r.choice((1, 1, 1, 2, 4))):
                _change_tree(tree, r)
            with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
                made = strict_yaml.dump(dict(tree)).encode() if as_yaml else json.dumps(tree).encode()
                if len(made) <= most:
                    return made
    return _change_bytes(data, r)[:most]


def _change_tree(tree: Any, r: random.Random) -> None:
    places = [*_places(tree)]
    if not places:
        return
    inside, key = r.choice(places)
    way = r.randrange(6)
    if way == 0:
        del inside[key]
    elif way == 1:
        other, at = r.choice(places)
        inside[key] = json.loads(json.dumps(other[at], default=str))
    elif way == 2 and isinstance(inside, list):
        inside.insert(r.randrange(len(inside) + 1), json.loads(json.dumps(inside[key], default=str)))
    elif way == 3 and isinstance(inside, dict):
        inside[str(r.choice(_SCALARS))] = inside.pop(key)
    elif way == 4 and isinstance(inside[key], int | float):
        inside[key] = r.choice((inside[key] + 1, inside[key] - 1, -inside[key], inside[key] * 2))
    else:
        inside[key] = json.loads(json.dumps(r.choice(_SCALARS)))


def _places(tree: Any) -> Any:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


_TOKENS = rb"""\n : - [ ] { } , " ' # &a *a !!int <<: ? | > \u0000 \ud800 .inf .nan 1e9 %YAML --- ... \x1b"""


def _change_bytes(data: bytes, r: random.Random) -> bytes:
    for _ in range(r.choice((1, 1, 2, 4))):
        at, end = sorted((r.randrange(len(data) + 1), r.randrange(len(data) + 1)))
        end = r.choice((at, at + 1, end))
        put = r.choice(
            (
                b"",
                r.choice((b"\n", b" ", b"\t", b"\x1b", b"\xff", *_TOKENS.split())),
                r.randbytes(r.randrange(1, 4)),
                data[at : at + 60],
            )
        )
        data = data[:at] + put + data[end:]
    return data


RUNS = {"case": 300, "ledger": 2000, "message": 2000, "rows": 40, "values": 2000}
"""Inputs of each target, seeds among them: as many as take a few seconds. The seeds of `case` are the corpus."""


@pytest.mark.parametrize("path", sorted(INPUTS.rglob("*.*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_inputs_are_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.samples
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris here")
@pytest.mark.parametrize("target", TARGETS)
def test_inputs_that_atheris_makes_are_read_or_refused(target: str, tmp_path: Path) -> None:
    arguments = [target, "--runs", str(RUNS[target]), "--keep", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "tests.parsers", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr[-1000:] + done.stdout).decode(errors="replace")
    assert not [*tmp_path.iterdir()]
