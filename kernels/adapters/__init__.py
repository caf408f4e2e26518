"""Attention of other packages, which each module imports, with the signatures and limits of docs/kernels.md."""

import importlib
import sys
from typing import Any

#: Multiples of 8, which many kernels need; those of models, and the smallest.
HEAD_DIMS = (8, 16, 32, 40, 64, 80, 96, 128, 192, 256)


def import_adapted(module: str, distribution: str) -> Any:
    """A module of an installed distribution. Raises ImportError, which says what is missing where."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs {distribution} in {sys.executable}: {error}") from error


def require(holds: object, limit: str) -> None:
    """Refuse the case unless the condition holds. Raises NotImplementedError, which says the `limit`."""
    if not holds:
        raise NotImplementedError(limit)


def read_window(causal: str | None, window: tuple[int, int] | None) -> tuple[int, int]:
    """The keys to the left and to the right of a query's own that it keeps, -1 for all."""
    left, right = window or (-1, -1)
    return left, 0 if causal else right
