"""Numbers among the arguments of a module: found, and changed one at a time."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from fuzz.protocol.recording import Recorded, RecordedCall, RecordedTensor

_MOST = 8
"""As many numbers as a case may have (generators/program/numbers.py)."""


def list_numbers(forward: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, int | float]:
    """The integers and floats among the arguments, by the names of the parameters of `forward`. A flag decides which
    operations run, so it is none of them."""
    with suppress(TypeError, ValueError):
        bound = inspect.signature(forward).bind(*args, **kwargs)
        found = {name: value for name, value in bound.arguments.items() if type(value) in (int, float)}
        return dict([*found.items()][:_MOST])
    return {}


def change_number(value: int | float) -> int | float:
    """Another number of its type. The results of Python for both tell its formulas apart."""
    return 1.5 * value + 0.25 if isinstance(value, float) else value + 1


def set_number(
    forward: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str, value: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with another value of a number."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    bound.arguments[name] = value
    return bound.args, bound.kwargs


def is_same_run(recorded: Recorded, calls: Sequence[RecordedCall], tensors: Sequence[RecordedTensor]) -> bool:
    """Whether calls are those of a recorded run but for numbers, and make tensors of the same types."""

    def tell(calls: Sequence[RecordedCall], tensors: Sequence[RecordedTensor]) -> Iterator[object]:
        yield from ((call.function, call.results, call.module) for call in calls)
        yield from ((tensor.shape, tensor.dtype, tensor.origin) for tensor in tensors)

    return [*tell(recorded.calls, recorded.tensors)] == [*tell(calls, tensors)]
