"""Given values: their files keep every bit, go with their case, are refused from strangers, and shrink to a form."""

import hashlib
import json
import math
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corpus import casefile
from corpus import value_files as case_values
from corpus.entry import Entry, load, save, write
from corpus.shrink import shrink
from fuzz.check.run import value_files
from fuzz.check.run.program import Program, same_bits
from fuzz.check.run.value_files import ValuesError
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.recording import KeepValues
from fuzz.run_store import Results
from generators.errors import CaseError, UserError
from generators.program.case import Case, Input, LaterCall, Values
from generators.program.edits import prune_if_valid, resize
from generators.program.emit import source
from generators.program.given import MOST_NUMBERS, VALUES_DIRECTORY, Given
from generators.program.ops import make_op
from generators.program.simplicity import sort_key
from generators.program.sizes import Size
from generators.program.type_check import check, is_valid
from generators.program.value_format import FormatError
from tests.campaign.fakes import judged
from triage.script_runs import ScriptRuns

NAN = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)  # with a payload
TENSORS = {
    "floats": torch.cat([torch.tensor([-0.0, math.inf, -math.inf, 1e-45]), NAN])[:, None],
    "scalar": torch.tensor(3, dtype=torch.int32),
    "mask": torch.tensor([[True, False], [False, True]]),
    "turned": torch.arange(6.0, dtype=torch.float64).view(2, 3).t(),
    **{name: torch.arange(9).to(getattr(torch, name)) for name in ("uint8", "int64", "float16", "bfloat16")},
}


def pack(header: Any, numbers: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"values": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


@pytest.mark.parametrize("name", TENSORS)
def test_every_bit_comes_back(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    sha256 = value_files.write(tensor, tmp_path)
    [path] = tmp_path.iterdir()
    assert path.name == Given((1,), "float32", sha256=sha256).file_name
    again = value_files.load(path, sha256)
    assert (again.dtype, again.shape, again.is_contiguous()) == (tensor.dtype, tensor.shape, True)
    assert again.view(torch.uint8).equal(tensor.contiguous().view(torch.uint8)) if tensor.dim() else again == tensor
    assert value_files.write(tensor.clone(), tmp_path) == sha256  # equal values are one file
    assert [*tmp_path.iterdir()] == [path]


def test_files_are_those_of_safetensors() -> None:
    tensor = torch.tensor([1.0, -2.0])
    text = b'{"values":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    whole = struct.pack("<Q", 64) + text.ljust(64) + struct.pack("<ff", 1.0, -2.0)
    assert value_files.serialize(tensor) == whole
    package = pytest.importorskip("safetensors.torch")
    for one in TENSORS.values():
        assert package.save({"values": one.contiguous()}) == value_files.serialize(one)
        assert package.load(value_files.serialize(one))["values"].shape == one.shape


EIGHT = b"\0" * 8
HEADERS: tuple[Any, ...] = ([], "values", {}, {"other": 1}, {"values": [1]}, {"values": {}}, entry(more=1))
DTYPES: tuple[Any, ...] = ("F99", "f32", 1, None, ["F32"], {})
SHAPES: tuple[Any, ...] = (
    [1 << 62, 1 << 62],
    [-2, -1],
    [2.0],
    [True, 2],
    2,
    "2",
    [1] * 9 + [2],
    [0],
    [3],
    [10**400],
    None,
)
OFFSETS: tuple[Any, ...] = ([0, 4], [8, 16], [8, 0], [0, 8.0], [False, 8], [0], 8, None)
HOSTILE = [
    *(b"", b"\0" * 7, EIGHT, b"\xff" * 64, pack(b"{"), pack(b"\xff" * 9), pack(b"[" * 1000)),
    *(pack(entry(), EIGHT, length=length) for length in (0, 5, 1 << 20, 1 << 63)),
    *(pack(header, EIGHT) for header in HEADERS),
    pack(entry() | {"__metadata__": {}}, EIGHT),
    *(pack(entry(dtype), EIGHT) for dtype in DTYPES),
    *(pack(entry(shape=shape), EIGHT) for shape in SHAPES),
    *(pack(entry(offsets=ends), EIGHT) for ends in OFFSETS),
    *(pack(entry(), b"\0" * size) for size in (0, 7, 9, 1 << 16)),
    pack(entry("BOOL", [2], [0, 2]), b"\1\2"),
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_file_of_a_stranger_is_refused_in_a_line(content: bytes) -> None:
    with pytest.raises(FormatError) as error:
        value_files.parse(content)
    assert "\n" not in str(error.value)


def test_a_file_is_known_by_its_hash_and_holds_what_the_case_says(tmp_path: Path) -> None:
    sha256 = value_files.write(TENSORS["floats"], tmp_path)
    [path] = tmp_path.iterdir()
    value_files.use({sha256: str(path)})
    first = value_files.read_values(sha256[:16], torch.float32, (5, 1))
    first.zero_()  # no program changes what another reads
    assert same_bits(value_files.read_values(sha256[:16], torch.float32, (5, 1)), TENSORS["floats"])
    with pytest.raises(ValuesError, match=r"holds float32 \[5, 1\], and the case says int64 \[5\]"):
        value_files.read_values(sha256[:16], torch.int64, (5,))
    with pytest.raises(ValuesError, match="names no such file"):
        value_files.read_values("0123456789abcdef", torch.float32, (5, 1))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(ValuesError, match="altered"):
        value_files.load(path, sha256)
    value_files.use({})
    with pytest.raises(ValuesError, match="names no such file"):
        value_files.read_values(sha256[:16], torch.float32, (5, 1))


def test_few_integers_stand_in_the_answer_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    tensors = {1: TENSORS["mask"], 2: torch.arange(MOST_NUMBERS + 1), 3: TENSORS["floats"], 4: torch.empty(0, 3)}
    request = KeepValues((1, 2, 3, 4), str(tmp_path), MOST_NUMBERS, 1 << 20)
    kept = {one.number: one for one in value_files.keep(tensors, request).tensors}
    assert (sorted(kept), kept[1].numbers, kept[1].sha256) == ([1, 2, 3], (1, 0, 0, 1), "")
    assert {path.name for path in tmp_path.iterdir()} == {f"{kept[n].sha256[:16]}.safetensors" for n in (2, 3)}
    with pytest.raises(ValuesError, match="its values take 2 MiB; at most 1 MiB are kept"):
        value_files.keep({1: torch.zeros(1 << 19)}, KeepValues((1,), str(tmp_path), 1, 1 << 20))


def give(tensor: Tensor, directory: Path) -> Given:
    request = KeepValues((0,), str(directory / "values"), MOST_NUMBERS, 1 << 20)
    [kept] = value_files.keep({0: tensor}, request).tensors
    return Given(kept.shape, kept.dtype, kept.numbers, kept.sha256)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "padded"])
def test_a_program_reads_its_values_in_a_worker_and_by_itself(layout: str, tmp_path: Path) -> None:
    """In the layout of the input. Sizes that are smaller than those of the values cut them."""
    x, tokens = torch.randn(4, 5).to(torch.bfloat16), torch.tensor([[3, 0, 9]])
    dims = (("S", 3), ("D", 5), ("N", 3))
    given = Values(given=give(x, tmp_path)), Values("zero_one", given=give(tokens, tmp_path))
    inputs = (
        Input("x", (Size.of("S"), Size.of("D")), "float32", given[0], layout, parameter=True),
        Input("t", (Size.of(1), Size.of("N")), "int64", given[1], layout),
    )
    text = source(Case(dims, inputs, (make_op("z", "relu", ["x"], {}),), ("z", "t")))
    assert given[0].given is not None
    value_files.use({given[0].given.sha256: str(next((tmp_path / "values").iterdir()))})
    program = Program(text)
    found = program.module(training=False).x, *program.inputs()
    alone: dict[str, Any] = {"__file__": str(tmp_path / "script.py")}
    exec(text, alone)
    for x_read, t_read in (found, (alone["Module"]().x, *alone["inputs"]())):
        assert same_bits(x_read.detach(), x[:3].float())
        assert same_bits(t_read, tokens)
    assert found[0].is_contiguous() is (layout == "contiguous")


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
    sha256 = value_files.write(torch.randn(2, 3), tmp_path / "made" / VALUES_DIRECTORY)
    case_values.note(tmp_path / "made")
    return make_case(Given((2, 3), "float32", sha256=sha256))


def forget(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """As in another process, when this directory is gone."""
    monkeypatch.setattr(case_values, "_directories", {})
    shutil.rmtree(directory)


def test_files_go_with_the_case(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values are one file, and a directory may be moved."""
    path = save(Entry(case), tmp_path / "found")
    write(Entry(replace(case, mode="training")), tmp_path / "found" / "other.case.yaml")
    assert len([*(tmp_path / "found" / VALUES_DIRECTORY).iterdir()]) == 1
    forget(monkeypatch, tmp_path / "made")
    moved = shutil.move(tmp_path / "found", tmp_path / "elsewhere")
    entry = load(Path(moved) / path.name)
    assert (entry.case, entry.case.id) == (case, case.id)
    again = save(entry, tmp_path / "copy")
    assert load(again) == entry


def test_a_campaign_keeps_the_files_of_its_suspicions(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Results(tmp_path) as results:
        wrong = SubjectResult("passes", Verdict.WRONG_RESULT)
        results.record_case(case, judged(), unexplained=[(case, wrong)])
    forget(monkeypatch, tmp_path / "made")
    with Results(tmp_path) as results:
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
    sha256 = value_files.write(torch.full((2, 3), 7.0 + len(why)), tmp_path / VALUES_DIRECTORY)
    case_values.note(tmp_path)
    path = save(Entry(make_case(Given((2, 3), "float32", sha256=sha256))), tmp_path)
    spoil(next((tmp_path / VALUES_DIRECTORY).iterdir()))
    if not why:
        assert load(path).case.inputs[0].values.given is not None
        return
    with pytest.raises(UserError, match=why) as error:
        load(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("of_mask", [False, True])
def test_a_file_holds_what_the_case_says(of_mask: bool, tmp_path: Path) -> None:
    """A file with the right hash and other values, or of another format, is refused before a worker reads it."""
    content = value_files.serialize(torch.zeros(3, 2)) if of_mask else b"no values"
    given = Given((2, 3), "float32", sha256=hashlib.sha256(content).hexdigest())
    (tmp_path / VALUES_DIRECTORY).mkdir()
    (tmp_path / VALUES_DIRECTORY / given.file_name).write_bytes(content)
    case_values.note(tmp_path)
    why = r"holds float32 \[3, 2\], and the case says float32 \[2, 3\]" if of_mask else "no header of safetensors"
    with pytest.raises(UserError, match=why):
        case_values.find(given)


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
