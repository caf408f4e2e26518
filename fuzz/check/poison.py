"""Fills memory that compiled code allocates, so that a read before the first write gives a wrong result every time.

Generated wrappers bind the allocating functions when they are loaded, and equal code loads its wrapper once. Replacing
the functions before the first compile therefore reaches every wrapper in Python. Memory that C++ allocates is not
filled (cpp_wrapper, AOTInductor, fallback kernels, locals of kernels), nor is a buffer that reuses another buffer.
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
_BYTES = {"nan": 0xFF, "large": 0x7B, ZERO: 0}
"""The fill of each kind. 0xFF is NaN in every float dtype. 0x7B is 1.3e36 in float32 and bfloat16, 61280 in float16,
and 2071690107 as an index, which is too large for any tensor here. With zeros many reads are right by chance."""

_kind = ""


def install() -> None:
    """Replace the functions, once per process and before the first compile."""
    for name in _ALLOCATORS:
        allocate = find(_HOME, name)
        if allocate is not None and not hasattr(allocate, "__wrapped__"):
            setattr(require("torch._C._dynamo", "guards"), name, _wrap(allocate))


@contextmanager
def fill(kind: str) -> Iterator[None]:
    """While entered, allocated memory is filled with a kind of `_BYTES`: integers at most with "large", booleans with
    True. Raises `SubjectError` where this torch lacks the functions."""
    global _kind  # noqa: PLW0603 - what is installed outlives every case
    require(_HOME, _CPU)
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before or ZERO  # Freed memory holds poison from now on.


def _wrap(allocate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(allocate)
    def fill_allocation(*args: Any) -> Any:
        tensor = allocate(*args)
        if _kind:
            # The allocator's pools are uint8; their parts have any dtype.
            is_free = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.uint8
            most = 0xFF if is_free else 1 if tensor.dtype is torch.bool else _BYTES["large"]
            # Padding between rows is filled too.
            tensor.untyped_storage().fill_(min(_BYTES[_kind], most))
        return tensor

    return fill_allocation
