"""What a subject is, and the subject a function on the command line makes."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from fuzz.check import settings
from fuzz.check.attention.function import Attention, SubjectError
from fuzz.subjects import Kind, kind

__all__ = ["Subject", "SubjectError", "named"]

#: Makes from (module, dynamic) something that is called like the module.
Compile = Callable[[nn.Module, bool], Callable[..., Any]]

_FIRST = (["q", "k", "v"], ["query", "key", "value"])


def as_it_is(module: nn.Module, _dynamic: bool) -> nn.Module:
    """The module, not compiled."""
    return module


@dataclass(frozen=True)
class Subject:
    """One way to run a module. With `attention`, the module has that function in the place of its own attention; with
    `tf32` it is compiled and run while TF32 is allowed, and in any case within `under()`."""

    name: str
    compile: Compile = as_it_is
    attention: Attention | None = None
    tf32: bool = False
    under: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def kind(self) -> Kind:
        """What the catalogue says of it."""
        return kind(self.name)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """The settings it is compiled and run under."""
        with settings.allowed(tf32=self.tf32, own_random=self.kind.random), self.under():
            yield


def named(name: str) -> Subject:
    """The subject behind `package.module:function`. Raises `SubjectError`.

    That is a `Subject`, or a function. It computes attention when its first parameters are q, k and v (or query, key and value), with the
    keywords and capabilities of docs/kernels.md; else it takes a module and gives a callable.
    """
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SubjectError(f"subject {name!r} can't be imported: {error}") from error
    if isinstance(function, Subject):
        return function
    if not callable(function):
        raise SubjectError(f"subject {name!r} is not a function")
    if not _attends(function):
        return Subject(name, lambda module, _dynamic: function(module))
    attention = Attention(lambda: function)
    try:
        attention.loaded()
    except SubjectError as error:
        raise SubjectError(f"subject {name!r}: {error}") from error
    return Subject(name, attention=attention)


def _attends(function: Callable[..., Any]) -> bool:
    try:
        return list(inspect.signature(function).parameters)[:3] in _FIRST
    except (TypeError, ValueError):  # something written in C that doesn't say
        return False
