"""Private names of torch, some of which a torch may lack."""

import functools
import importlib
import inspect
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
    original = require(module, path)
    return mock.patch.object(*_find_owner(module, path), make(original))


def intercept(module: str, path: str, call: Callable[..., Any]) -> AbstractContextManager[Any]:
    """While entered, a call of the function `path` is one of `call`, which also gets the function, as its first
    argument. Raises as `require`."""
    return mock.patch.object(*_surround(module, path, call))


def intercept_for_good(module: str, path: str, call: Callable[..., Any]) -> None:
    """As `intercept`, from now on. Another time without effect."""
    if getattr(require(module, path), "intercepted_by", None) is not call:
        setattr(*_surround(module, path, call))


def _surround(module: str, path: str, call: Callable[..., Any]) -> tuple[Any, str, Any]:
    """The arguments of `setattr`."""
    original, (owner, name) = require(module, path), _find_owner(module, path)

    @functools.wraps(original)
    def run(*args: Any, **options: Any) -> Any:
        return call(original, *args, **options)

    vars(run)["intercepted_by"] = call
    is_bound = isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod))
    return owner, name, staticmethod(run) if is_bound else run


def _find_owner(module: str, path: str) -> tuple[Any, str]:
    """The object in a module of torch that has `path`, and its name there."""
    owner, _, name = path.rpartition(".")
    return require(module, owner) if owner else sys.modules[module], name
