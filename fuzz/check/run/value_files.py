"""Files of given values as tensors (generators/program/value_format.py), for programs that read them."""

import ctypes
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fuzz.check.run.tensor_memory import name_dtype
from fuzz.protocol.recording import KeepValues, KeptTensor, KeptValues
from generators.program.value_format import VALUES_SUFFIX, FormatError, name_values, read_header, write_header

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
    sha256 = next((known for known in _files if name_values(known) == name), None)
    if sha256 is None:
        raise ValuesError(f"{name}{VALUES_SUFFIX}: the case names no such file")
    if sha256 not in _read:
        _read[sha256] = load(Path(_files[sha256]), sha256)
    tensor = _read[sha256]
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
        wanted = f"{name_dtype(dtype)} {list(shape)}"
        raise ValuesError(
            f"{name}{VALUES_SUFFIX}: holds {name_dtype(tensor.dtype)} {list(tensor.shape)}, and the case says {wanted}"
        )
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
    except FormatError as error:
        raise ValuesError(f"{path}: {error}") from None


def parse(content: bytes) -> Tensor:
    """The tensor in the bytes of a file. Raises FormatError."""
    header = read_header(content)
    numbers = bytearray(memoryview(content)[header.start :])
    return torch.frombuffer(numbers, dtype=getattr(torch, header.dtype)).reshape(header.shape).clone()


def write(tensor: Tensor, directory: Path) -> str:
    """Write a file of these values, and return its SHA-256. Equal values are written once. May raise OSError."""
    content = serialize(tensor)
    sha256 = hashlib.sha256(content).hexdigest()
    path = directory / f"{name_values(sha256)}{VALUES_SUFFIX}"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)
    return sha256


def serialize(tensor: Tensor) -> bytes:
    """The bytes of a file of these values."""
    flat = tensor.detach().cpu().contiguous()
    return write_header(name_dtype(flat.dtype), flat.shape) + ctypes.string_at(flat.data_ptr(), flat.nbytes)


def keep(tensors: Mapping[int, Tensor], request: KeepValues) -> KeptValues:
    """Keep the values of these tensors, by number: of few integers in the answer, of others in files. A tensor without
    elements is left out.

    Raises ValuesError if they take more bytes than the request allows, OSError if a file can't be written.
    """
    taken = {number: tensors[number] for number in request.tensors if tensors[number].numel()}
    inline = {
        number
        for number, value in taken.items()
        if not value.is_floating_point() and value.numel() <= request.most_numbers
    }
    size = sum(value.numel() * value.element_size() for number, value in taken.items() if number not in inline)
    if size > request.most_bytes:
        raise ValuesError(f"its values take {size / 2**20:.0f} MiB; at most {request.most_bytes >> 20} MiB are kept")
    kept = []
    for number, value in taken.items():
        numbers = tuple(map(int, value.flatten().tolist())) if number in inline else ()
        sha256 = "" if numbers else write(value, Path(request.directory))
        kept.append(KeptTensor(number, tuple(value.shape), name_dtype(value.dtype), numbers, sha256))
    return KeptValues(tuple(kept))
