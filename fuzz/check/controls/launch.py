"""Attention functions launched in another way than they choose."""

import functools
import importlib
import inspect
from dataclasses import replace
from typing import Any

from fuzz.check.attention.function import Function
from fuzz.check.exceptions import SubjectError


def set_tile(function: Function, tile: list[int]) -> Function:
    """`function` with a tile of (queries, keys). Raises `SubjectError` where it takes none."""
    if "tile" not in inspect.signature(function).parameters:
        raise SubjectError(f"{getattr(function, '__name__', function)} has no parameter `tile`")

    @functools.wraps(function)
    def attention(*args: Any, **options: Any) -> Any:
        return function(*args, **{**options, "tile": tuple(tile)})

    return attention


def set_schedule(setting: str, function: Function, numbers: list[int]) -> Function:
    """`function` of (a copy of) the bundled kernels, launched with `setting` (num_warps, num_stages) = `numbers[0]`.

    Raises `SubjectError` for any other function.
    """
    package, changes = function.__module__.rpartition(".")[0], {setting: numbers[0]}
    try:
        launch: Any = importlib.import_module(f"{package}.launch")
        forward, backward = launch.forward_schedule, launch.backward_schedule
    except (ImportError, AttributeError, ValueError) as error:
        raise SubjectError(f"{function.__module__} has no schedule: {error}") from error

    @functools.wraps(function)
    def attention(*args: Any, **options: Any) -> Any:
        launch.forward_schedule = lambda *a, **o: replace(forward(*a, **o), **changes)
        launch.backward_schedule = lambda *a, **o: tuple(replace(plan, **changes) for plan in backward(*a, **o))
        try:
            return function(*args, **options)
        finally:
            launch.forward_schedule, launch.backward_schedule = forward, backward

    return attention
