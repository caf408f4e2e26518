"""Reads and writes files of given values (generators/program/given.py): safetensors with one tensor, `values`.

A file is 8 bytes with the length of a header, the header as JSON, and the numbers
(https://github.com/huggingface/safetensors#format). Nothing in it is run. A file from a stranger is checked before
anything of the size it claims is made.
"""

import ctypes
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.protocol.recording import KeepValues, KeptTensor, KeptValues

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_KEY = "values"
_HEADER_BYTES = 1024
"""The longest header: it has one tensor of at most 8 axes, which takes about 200 bytes."""
_ALIGNED = 8  # bytes; the numbers begin at a multiple, as files of the package safetensors do
_NAMED = 16
"""As in generators/program/given.py: a file is named by so many digits of its hash."""

_files: dict[str, str] = {}
_read: dict[str, Tensor] = {}


class ValuesError(Exception):
    """Values that can't be read or kept; the text is one line."""


def use(files: Mapping[str, str]) -> None:
    """Let programs read these files: paths by SHA-256."""
    _files.clear()
    _files.update(files)
    for sha256 in _read.keys() - _files.keys():
        del _read[sha256]


def read_values(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A fresh tensor with the values of a file, by the start of its SHA-256. Programs call it. Raises ValuesError."""
    sha256 = next((known for known in _files if known.startswith(name)), None)
    if sha256 is None:
        raise ValuesError(f"{name}.safetensors: the case names no such file")
    if sha256 not in _read:
        _read[sha256] = load(Path(_files[sha256]), sha256)
    tensor = _read[sha256]
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
        found, wanted = (
            f"{str(t).removeprefix('torch.')} {list(s)}" for t, s in ((tensor.dtype, tensor.shape), (dtype, shape))
        )
        raise ValuesError(f"{name}.safetensors: holds {found}, and the case says {wanted}")
    return tensor.clone()


def load(path: Path, sha256: str) -> Tensor:
    """The tensor in a file with this SHA-256. Raises ValuesError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValuesError(f"{path}: not a regular file")
            content = file.read()
    except (OSError, ValueError) as error:
        raise ValuesError(f"{path}: can't be read: {error.args[-1]}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValuesError(f"{path}: altered: its SHA-256 is not {sha256}")
    try:
        return parse(content)
    except ValuesError as error:
        raise ValuesError(f"{path}: {error}") from None


def parse(content: bytes) -> Tensor:
    """The tensor in the bytes of a file. Raises ValuesError."""
    length = int.from_bytes(content[:8], "little")
    _require(len(content) >= 8 and length <= min(_HEADER_BYTES, len(content) - 8), "no header of safetensors")
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError) as error:
        raise ValuesError("a header that is no JSON") from error
    _require(isinstance(header, dict) and header.keys() == {_KEY}, f"expected one tensor, {_KEY!r}, and nothing else")
    entry, numbers = header[_KEY], memoryview(content)[8 + length :]
    _require(
        isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}, "unknown keys in its header"
    )
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    _require(dtype is not None, f"dtype {str(entry['dtype'])[:20]!r}, expected one of {', '.join(DTYPES)}")
    assert dtype is not None
    shape = entry["shape"]
    _require(_are_sizes(shape) and len(shape) <= 8 and min(shape, default=1) > 0, "a shape that no given values have")
    count = math.prod(shape)
    # Compared as Python integers, so no claim overflows.
    _require(count * dtype.itemsize == len(numbers), f"{len(numbers)} bytes for {count} elements of {entry['dtype']}")
    _require(entry["data_offsets"] == [0, len(numbers)] and _are_sizes(entry["data_offsets"]), "offsets of other data")
    if dtype is torch.bool:
        _require(not bytes(numbers).strip(b"\0\1"), "a boolean that is neither 0 nor 1")
    return torch.frombuffer(bytearray(numbers), dtype=dtype).reshape(shape).clone()


def write(tensor: Tensor, directory: Path) -> str:
    """Write a file of these values, and return its SHA-256. Equal values are written once. May raise OSError."""
    content = serialize(tensor)
    sha256 = hashlib.sha256(content).hexdigest()
    path = directory / f"{sha256[:_NAMED]}.safetensors"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)
    return sha256


def serialize(tensor: Tensor) -> bytes:
    """The bytes of a file of these values; those that `safetensors.torch.save({"values": tensor})` gives."""
    flat = tensor.detach().cpu().contiguous()
    named = {dtype: name for name, dtype in DTYPES.items()}
    entry = {"dtype": named[flat.dtype], "shape": list(flat.shape), "data_offsets": [0, flat.nbytes]}
    header = json.dumps({_KEY: entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNED)
    return len(header).to_bytes(8, "little") + header + ctypes.string_at(flat.data_ptr(), flat.nbytes)


def keep(tensors: Mapping[int, Tensor], request: KeepValues) -> KeptValues:
    """Keep the values of these tensors, by number: of few integers in the answer, of others in files. A tensor without
    elements is left out.

    Raises ValuesError if they take more bytes than the request allows, OSError if a file can't be written.
    """
    taken = {number: tensors[number] for number in request.tensors if tensors[number].numel()}
    inline = {
        number
        for number, value in taken.items()
        if not (value.is_floating_point() or value.is_complex()) and value.numel() <= request.most_numbers
    }
    size = sum(value.numel() * value.element_size() for number, value in taken.items() if number not in inline)
    if size > request.most_bytes:
        raise ValuesError(f"its values take {size / 2**20:.0f} MiB; at most {request.most_bytes >> 20} MiB are kept")
    kept = []
    for number, value in taken.items():
        numbers = tuple(map(int, value.flatten().tolist())) if number in inline else ()
        sha256 = "" if numbers else write(value, Path(request.directory))
        dtype = str(value.dtype).removeprefix("torch.")
        kept.append(KeptTensor(number, tuple(value.shape), dtype, numbers, sha256))
    return KeptValues(tuple(kept))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _require(fact: bool, complaint: str) -> None:
    if not fact:
        raise ValuesError(complaint)
