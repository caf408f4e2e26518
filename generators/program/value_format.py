"""The format of a file of given values: safetensors with one tensor, `values`.

A file is 8 bytes with the length of a header, the header as JSON, and the numbers in the order of memory
(https://github.com/huggingface/safetensors#format). Nothing in it is run.

Workers import this module, so it needs the standard library of Python 3.10 alone.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
}
"""Names of dtypes in torch, and their bytes, by their names in a file."""
MOST_BYTES = 256 << 20
"""The most bytes of numbers in a file, and in all files of an imported module: as many as the largest tensor of a case
has in float32."""
HEADER_BYTES = 1024
"""The longest header: it has one tensor of at most 8 axes, which takes about 200 bytes."""
VALUES_SUFFIX = ".safetensors"
_KEY = "values"
_MOST_AXES = 8
_ALIGNED = 8  # bytes; the numbers begin at a multiple, as files of the package safetensors do
_NAMED = 16
"""Hex digits of the hash in the name of a file: 64 bits, so that lines stay short. Readers compare the whole hash."""


class FormatError(ValueError):
    """Bytes that are no file of given values; the text is one line."""


@dataclass(frozen=True)
class Header:
    """The header of a file. `start`: the place of its numbers."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def name_values(sha256: str) -> str:
    """The name of the file with this hash, without its suffix."""
    return sha256[:_NAMED]


def read_header(content: bytes) -> Header:
    """The header of a whole file, whose numbers are as many as it says. Raises FormatError."""
    length = int.from_bytes(content[:8], "little")
    _require(len(content) >= 8 and length <= min(HEADER_BYTES, len(content) - 8), "no header of safetensors")
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError) as error:
        raise FormatError("a header that is no JSON") from error
    _require(isinstance(header, dict) and header.keys() == {_KEY}, f"expected one tensor, {_KEY!r}, and nothing else")
    entry, size = header[_KEY], len(content) - 8 - length
    _require(
        isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}, "unknown keys in its header"
    )
    shape, ends = entry["shape"], entry["data_offsets"]
    known = isinstance(entry["dtype"], str) and entry["dtype"] in _DTYPES
    _require(known, f"dtype {str(entry['dtype'])[:20]!r}, expected one of {', '.join(_DTYPES)}")
    dtype, width = _DTYPES[entry["dtype"]]
    _require(
        _are_sizes(shape) and len(shape) <= _MOST_AXES and min(shape, default=1) > 0,
        "a shape that no given values have",
    )
    # Python's integers don't overflow, whatever a file claims.
    _require(math.prod(shape) * width == size, f"{size} bytes of numbers do not fit its shape and {entry['dtype']}")
    _require(_are_sizes(ends) and ends == [0, size], "offsets of other data")
    whole = dtype != "bool" or not content[8 + length :].strip(b"\0\1")
    _require(whole, "a boolean that is neither 0 nor 1")
    return Header(dtype, tuple(shape), 8 + length)


def write_header(dtype: str, shape: Sequence[int]) -> bytes:
    """All that stands before the numbers: the bytes that `safetensors.torch.save({"values": tensor})` begins with."""
    name, width = next((name, width) for name, (known, width) in _DTYPES.items() if known == dtype)
    entry = {"dtype": name, "shape": [*shape], "data_offsets": [0, math.prod(shape) * width]}
    text = json.dumps({_KEY: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _require(fact: bool, complaint: str) -> None:
    if not fact:
        raise FormatError(complaint)
