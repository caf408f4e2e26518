"""Adapters of attention in other packages to the signatures and capabilities of docs/kernels.md."""

import importlib
import sys
from typing import Any

HEAD_DIMS = (8, 16, 32, 40, 64, 80, 96, 128, 192, 256)
"""Multiples of 8, which many kernels need: head_dims of models, and the smallest."""


def import_adapted(module: str, distribution: str) -> Any:
    """A module of an installed distribution. Raises ImportError with the missing distribution and the interpreter."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs {distribution} in {sys.executable}: {error}") from error


def require(holds: object, limit: str) -> None:
    """Raise NotImplementedError, with `limit` as text, unless the condition holds."""
    if not holds:
        raise NotImplementedError(limit)


def read_window(causal: str | None, window: tuple[int, int] | None) -> tuple[int, int]:
    """(left, right): the numbers of keys that a query keeps on each side of its own position, -1 for all."""
    left, right = window or (-1, -1)
    return left, 0 if causal else right
