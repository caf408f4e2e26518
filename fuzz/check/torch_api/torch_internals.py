"""Private names of torch, some of which a torch may lack."""

import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from fuzz.check.torch_api.exceptions import SubjectError


def find(module: str, path: str) -> Any | None:
    """`path` in a module of torch, which may be "Class.method"; None if this torch lacks it."""
    found: Any = sys.modules.get(module)
    if found is None:
        with warnings.catch_warnings():
            # Inductor uses deprecated parts of torch.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                found = importlib.import_module(module)
            except ImportError:
                return None
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def require(module: str, path: str) -> Any:
    """As `find`. Raises `SubjectError` if this torch lacks it."""
    found = find(module, path)
    if found is None:
        raise SubjectError(f"torch {torch.__version__} has no {module}.{path}")
    return found


def wrap(module: str, path: str, make: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """While entered, `path` in a module of torch is `make(original)`. Raises as `require`."""
    original, (owner, _, name) = require(module, path), path.rpartition(".")
    return mock.patch.object(require(module, owner) if owner else sys.modules[module], name, make(original))
