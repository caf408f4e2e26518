"""Private names of torch, some of which a torch may lack."""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuzz.check.exceptions import SubjectError


def find(module: str, path: str) -> Any | None:
    """`path` in a module of torch, "Class.method" included; None where this torch lacks it."""
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


@contextmanager
def patch(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While entered, an attribute has another value."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def require(module: str, path: str) -> Any:
    """As `find`. Raises `SubjectError` where this torch lacks it."""
    found = find(module, path)
    if found is None:
        raise SubjectError(f"torch {torch.__version__} has no {module}.{path}")
    return found


@contextmanager
def wrap(module: str, path: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """While entered, `path` in a module of torch is `make(original)`. Raises as `require`."""
    original, (owner, _, name) = require(module, path), path.rpartition(".")
    with patch(require(module, owner) if owner else sys.modules[module], name, make(original)):
        yield
