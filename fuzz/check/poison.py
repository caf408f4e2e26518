"""Fills memory that compiled code allocates, so that reading it before anything is written shows every time.

Generated wrappers bind the functions that allocate when they are loaded, and are used again for equal code: so these
are replaced before anything is compiled, and what replaces them asks each time whether to fill. They serve wrappers in
Python alone. Not filled: what C++ allocates (cpp_wrapper, AOTInductor, fallback kernels, locals of kernels); a buffer
that takes over the memory of another one holds what that held.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuzz.check.torch_internals import find, require

POISON = "poison"
"""The setting that fills."""
_HOME = "torch._C._dynamo.guards"
_CPU = "_empty_strided_cpu"
_ALLOCATORS = (_CPU, "_empty_strided_cpu_pinned", "_empty_strided_cuda")
ZERO = "zero"
"""What reads of unwritten memory are right with more often than with what freed memory holds, poison among it."""
#: What each byte is set to. All bits set are NaN in every float dtype; 0x7B gives 1.3e36 in float32 and bfloat16, 61280
#: in float16, and as an index 2071690107: too large for any tensor here.
_BYTES = {"nan": 0xFF, "large": 0x7B, ZERO: 0}

_kind = ""


def install() -> None:
    """Replace the functions, once per process and before the first compile."""
    for name in _ALLOCATORS:
        allocate = find(_HOME, name)
        if allocate is not None and not hasattr(allocate, "__wrapped__"):
            setattr(require("torch._C._dynamo", "guards"), name, _wrap(allocate))


@contextmanager
def fill(kind: str) -> Iterator[None]:
    """While entered, what is allocated is filled with "nan", "large" finite numbers or `ZERO`; after that with `ZERO`.

    Integers are large under both, booleans True. Raises `SubjectError` where this torch has no such functions.
    """
    global _kind  # noqa: PLW0603 - what is installed outlives every case
    require(_HOME, _CPU)
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before or ZERO  # freed memory holds poison from now on


def _wrap(allocate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(allocate)
    def fill_allocation(*args: Any) -> Any:
        tensor = allocate(*args)
        if _kind:
            # Pools, whose parts have other dtypes, are uint8.
            is_free = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.uint8
            most = 0xFF if is_free else 1 if tensor.dtype is torch.bool else _BYTES["large"]
            # The memory between its rows too.
            tensor.untyped_storage().fill_(min(_BYTES[_kind], most))
        return tensor

    return fill_allocation
