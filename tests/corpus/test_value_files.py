"""Given values travel with their case, survive the edits that they fit, and shrink to a form."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from corpus import casefile, value_files
from corpus.entry import Entry, load, save, write
from corpus.shrink import shrink
from fuzz.check.run import value_files as worker_side
from fuzz.protocol import SubjectResult, Verdict
from fuzz.run_store import Results
from generators.errors import CaseError, UserError
from generators.program.case import Case, Input, LaterCall, Values
from generators.program.edits import prune_if_valid, resize
from generators.program.emit import source
from generators.program.given import DIRECTORY, Given
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid, make_op
from triage.script_runs import ScriptRuns

MASK = Given((2, 3), "int64", (0, 1, 1, 0, 0, 1))
SIZES = (Size.of("B"), Size.of("S"))


def make_case(given: Given, *, dtype: str = "float32") -> Case:
    """x + mask, with given values of x."""
    inputs = (
        Input("x", SIZES, dtype, Values("normal", 0, 0.5, given=given)),
        Input("mask", SIZES, "int64", Values("zero_one", 1, given=MASK)),
    )
    return Case((("B", 2), ("S", 3)), inputs, (make_op("out", "add", ["x", "mask"], {}),), ("out",))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    sha256 = worker_side.write(torch.randn(2, 3), tmp_path / "made" / DIRECTORY)
    value_files.note(tmp_path / "made")
    return make_case(Given((2, 3), "float32", sha256=sha256))


def forget(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """As in another process, when this directory is gone."""
    monkeypatch.setattr(value_files, "_directories", {})
    shutil.rmtree(directory)


def test_files_go_with_the_case(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values are one file, and a directory may be moved."""
    path = save(Entry(case), tmp_path / "found")
    write(Entry(replace(case, mode="training")), tmp_path / "found" / "other.case.yaml")
    assert len([*(tmp_path / "found" / DIRECTORY).iterdir()]) == 1
    forget(monkeypatch, tmp_path / "made")
    moved = shutil.move(tmp_path / "found", tmp_path / "elsewhere")
    entry = load(Path(moved) / path.name)
    assert (entry.case, entry.case.id) == (case, case.id)
    again = save(entry, tmp_path / "copy")
    assert load(again) == entry


def test_a_campaign_keeps_the_files_of_its_suspicions(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Results(tmp_path)) as results:
        wrong = SubjectResult("passes", Verdict.WRONG_RESULT)
        results.record_case(case, position=(1, frozenset()), unexplained=[(case, wrong)])
    forget(monkeypatch, tmp_path / "made")
    with closing(Results(tmp_path)) as results:
        [suspicion] = results.waiting()
    assert suspicion.case == case
    assert load(save(Entry(suspicion.case), tmp_path / "found")).case == case


def test_a_script_of_a_report_runs_with_its_values(case: Case) -> None:
    text = f"{source(case)}\nprint(inputs()[0].shape, inputs()[1].tolist())\n"
    with ScriptRuns(sys.executable, seconds=60) as scripts:
        done = scripts.run(text)
    assert (done.stdout, done.stderr) == ("torch.Size([2, 3]) [[0, 1, 1], [0, 0, 1]]\n", "")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(Path.unlink, "missing"), (lambda path: path.write_bytes(b"other"), "altered"), (lambda path: None, "")],
)
def test_a_case_without_its_file_is_refused(spoil: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    sha256 = worker_side.write(torch.full((2, 3), 7.0 + len(why)), tmp_path / DIRECTORY)
    value_files.note(tmp_path)
    path = save(Entry(make_case(Given((2, 3), "float32", sha256=sha256))), tmp_path)
    spoil(next((tmp_path / DIRECTORY).iterdir()))
    if not why:
        assert load(path).case.inputs[0].values.given is not None
        return
    with pytest.raises(UserError, match=why) as error:
        load(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("of_mask", [False, True])
def test_a_file_holds_what_the_case_says(of_mask: bool, tmp_path: Path) -> None:
    """A file with the right hash and other values, or of another format, is refused before a worker reads it."""
    content = worker_side.serialize(torch.zeros(3, 2)) if of_mask else b"no values"
    given = Given((2, 3), "float32", sha256=hashlib.sha256(content).hexdigest())
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / given.file_name).write_bytes(content)
    value_files.note(tmp_path)
    why = r"holds float32 \[3, 2\], and the case says float32 \[2, 3\]" if of_mask else "no header of safetensors"
    with pytest.raises(UserError, match=why):
        value_files.find(given)


def test_given_values_are_read_and_written(case: Case) -> None:
    text = casefile.dumps(case)
    assert "values: {kind: given, shape: [2, 3], dtype: int64, numbers: [0, 1, 1, 0, 0, 1], like: {kind: zero" in text
    assert casefile.loads(text) == case
    plain = casefile.loads(text.replace(", like: {kind: zero_one, seed: 1}", ""))
    assert plain.inputs[1].values == Values("zero_one", given=MASK)
    assert case.id != make_case(Given((2, 3), "float32", sha256="0" * 64)).id


def test_edits_keep_the_values_that_fit_and_leave_others_for_their_form(case: Case) -> None:
    smaller, larger = resize(case, {"B": 1, "S": 2}), resize(case, {"B": 2, "S": 4})
    assert smaller is not None and larger is not None
    assert smaller.inputs[0].values.given == case.inputs[0].values.given  # cut when it is read
    assert smaller.inputs[1].values.given == Given((1, 2), "int64", (0, 1))
    assert [item.values for item in larger.inputs] == [Values("normal", 0, 0.5), Values("zero_one", 1)]
    assert all(sort_key(other) < sort_key(case) for other in (smaller, replace(larger, dims=case.dims)))
    assert prune_if_valid(replace(case, inputs=(replace(case.inputs[0], dtype="bfloat16"), case.inputs[1]))) is not None
    assert is_valid(replace(case, calls=(LaterCall(sizes=(("S", 2),)),)))
    with pytest.raises(CaseError, match="given values of shape"):
        check(replace(case, calls=(LaterCall(sizes=(("S", 4),)),)))


def test_given_indices_stay_within_their_axis() -> None:
    table = Input("table", (Size.of("V"), Size.of(4)), "float32")
    tokens = Input("tokens", (Size.of(3),), "int64", Values("tokens", scale=9.0, given=Given((3,), "int64", (0, 5, 2))))
    op = make_op("out", "embedding", ["tokens", "table"], {})
    assert is_valid(Case((("V", 6),), (table, tokens), (op,), ("out",)))
    with pytest.raises(CaseError, match="reach beyond an axis of 5"):
        check(Case((("V", 5),), (table, tokens), (op,), ("out",)))


def test_values_that_do_not_matter_become_a_form(case: Case) -> None:
    smallest = shrink(case, lambda case: case.ops[-1].kind == "add", is_readable=False)[-1]
    assert {item.values.given for item in smallest.inputs} == {None}


def test_values_that_matter_shrink_towards_zeros(case: Case) -> None:
    """And sizes shrink while they stay. The last number of a row must be 1, and some number before it 0."""

    def still_fails(case: Case) -> bool:
        given = next((item.values.given for item in case.inputs if item.dtype == "int64"), None)
        rows = [] if given is None else [given.numbers[at : at + given.shape[1]] for at in range(0, 6, given.shape[1])]
        return any(row and row[-1] == 1 and 0 in row for row in rows)

    smallest = shrink(case, still_fails, is_readable=False)[-1]
    [mask] = [item.values.given for item in smallest.inputs if item.values.given is not None]
    assert mask == Given((1, 2), "int64", (0, 1))
