"""Files of given values: every bit comes back, and a file from a stranger is read or refused."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.run import value_files
from fuzz.check.run.program import Program, same_bits
from fuzz.check.run.value_files import ValuesError
from fuzz.protocol.recording import KeepValues
from generators.program.case import Case, Input, Values
from generators.program.emit import source
from generators.program.given import MOST_NUMBERS, Given
from generators.program.sizes import Size
from generators.program.type_check import make_op
from generators.program.value_format import FormatError

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
