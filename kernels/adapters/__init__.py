"""Attention of other packages with the signature of attention functions (docs/kernels.md).

Each module imports what it adapts when it is named as a subject, and installs nothing.
"""

import importlib
import sys
from typing import Any


def import_adapted(module: str, distribution: str) -> Any:
    """A module of an installed distribution. Raises ImportError, which says what is missing where."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs {distribution} in {sys.executable}: {error}") from error


def require(holds: bool, limit: str) -> None:
    """Refuse the case unless the condition holds. Raises NotImplementedError, which says the `limit`."""
    if not holds:
        raise NotImplementedError(limit)
