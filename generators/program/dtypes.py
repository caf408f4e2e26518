"""The dtypes a case may use, and PyTorch's type promotion over them.

Promotion follows https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc: a tensor with
dimensions outranks a 0-d tensor, which outranks a Python number, unless the latter's category is higher.
"""

from collections.abc import Iterable
from functools import reduce

FLOATS = ("float32", "bfloat16", "float16", "float64")
LOW_PRECISION = ("bfloat16", "float16")
INTEGERS = ("uint8", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool")

LOWEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "float16": -65504.0}
LOWEST |= {"float64": -1.7976931348623157e308}
"""The lowest finite number of each floating dtype."""
_BY_WIDTH = ("bool", *INTEGERS, *LOW_PRECISION, "float32", "float64")


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    if dtype == "bool":
        return 0
    return 2 if dtype in FLOATS else 1


def _wider(a: str, b: str) -> str:
    if a != b and {a, b} == set(LOW_PRECISION):
        return "float32"
    return max(a, b, key=_BY_WIDTH.index)


def promote(tensors: Iterable[tuple[str, int]], numbers: Iterable[bool | int | float] = ()) -> str:
    """The result dtype of an elementwise operation over tensors, given as (dtype, rank), and Python numbers."""
    values = list(tensors)
    levels = [
        [dtype for dtype, rank in values if rank],
        [dtype for dtype, rank in values if not rank],
        ["bool" if isinstance(n, bool) else "int64" if isinstance(n, int) else "float32" for n in numbers],
    ]
    widest = [reduce(_wider, level) for level in levels if level]
    # max keeps the first of equal categories.
    return max(widest, key=category, default="float32")
