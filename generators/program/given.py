"""The exact values of an input: a few integers in the case itself, or a file beside the case.

A file (generators/program/value_format.py) lies in the directory `values` beside the case file, by the start of its
SHA-256. So equal values are one file.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from generators.errors import require
from generators.program.value_format import VALUES_SUFFIX, name_values
from generators.program.values import DTYPES, RANGES, category

VALUES_DIRECTORY = "values"
MOST_NUMBERS = 256
"""The most integers that stand in the case: a mask of 16 x 16 or two rows of 128 tokens. Nobody reads more."""
_SHA256 = re.compile("[0-9a-f]{64}")

READER = f"""

def read_values(name, dtype, shape):
    path = pathlib.Path(__file__).with_name("{VALUES_DIRECTORY}") / f"{{name}}{VALUES_SUFFIX}"
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")  # after the header
    return torch.frombuffer(content, dtype=dtype, offset=start).reshape(shape).clone()
"""
"""The text of the function by which a program reads a file. In a worker, `fuzz.check.run.value_files` replaces it."""


@dataclass(frozen=True, slots=True)
class Given:
    """Exact values, either as integers (booleans as 0 and 1) in the order of memory, or in a file."""

    shape: tuple[int, ...]
    dtype: str
    numbers: tuple[int, ...] = ()
    sha256: str = ""  # of the file

    @property
    def file_name(self) -> str:
        return f"{name_values(self.sha256)}{VALUES_SUFFIX}"


def check_given(given: Given, sizes: Sequence[int], dtype: str) -> None:
    """Raises CaseError unless these are values that hold a tensor of these sizes, the first elements of each axis, and
    of this kind of dtype."""
    require(given.dtype in DTYPES, f"given dtype {given.dtype!r}, expected one of {', '.join(DTYPES)}")
    is_alike = category(given.dtype) == category(dtype)
    require(is_alike, f"given values of {given.dtype} for an input of {dtype}")
    require(
        bool(given.numbers) != bool(given.sha256), "given values have either numbers or the sha256 of a file, not empty"
    )
    positive = min(given.shape, default=1) > 0
    require(positive, f"given shape {list(given.shape)} has no elements")
    if given.sha256:
        require(_SHA256.fullmatch(given.sha256) is not None, f"given sha256 {given.sha256!r} is not 64 hex digits")
    else:
        require(category(given.dtype) < 2, f"given numbers are integers or booleans, not {given.dtype}; use a file")
        few = len(given.numbers) <= MOST_NUMBERS
        require(few, f"{len(given.numbers)} given numbers; at most {MOST_NUMBERS}, use a file for more")
        count = math.prod(given.shape)
        require(len(given.numbers) == count, f"{len(given.numbers)} given numbers for shape {list(given.shape)}")
        least, most = RANGES[given.dtype]
        odd = next((number for number in given.numbers if not least <= number <= most), None)
        require(odd is None, f"given number {odd} is no {given.dtype}")
    fits = len(sizes) == len(given.shape) and all(0 < a <= b for a, b in zip(sizes, given.shape, strict=True))
    require(fits, f"given values of shape {list(given.shape)} for an input of shape {list(sizes)}")


def cut(given: Given, sizes: Sequence[int]) -> Given:
    """The values without the numbers beyond these sizes. A file stays whole."""
    if not given.numbers or given.shape == tuple(sizes):
        return given
    steps = [math.prod(given.shape[axis + 1 :]) for axis in range(len(given.shape))]
    places = product(*map(range, sizes))
    kept = (given.numbers[sum(at * step for at, step in zip(place, steps, strict=True))] for place in places)
    return replace(given, shape=tuple(sizes), numbers=tuple(kept))


def spell_given(given: Given, shape: Sequence[str], *, is_cut: bool) -> str:
    """The torch expression. `shape`: the text of each size; `is_cut`: the first elements of each axis alone."""
    if given.sha256:
        text = f'read_values("{name_values(given.sha256)}", torch.{given.dtype}, {given.shape})'
    else:
        text = f"torch.tensor({_nest(given.numbers, given.shape)}, dtype=torch.{given.dtype})"
    return f"{text}[{', '.join(f':{size}' for size in shape)}].contiguous()" if is_cut and shape else text


def _nest(numbers: Sequence[int], shape: Sequence[int]) -> Any:
    if not shape:
        return numbers[0]
    step = len(numbers) // shape[0]
    return [_nest(numbers[at : at + step], shape[1:]) for at in range(0, len(numbers), step)]
