"""What a subject is, and the subject a function on the command line makes."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

#: Makes from (module, dynamic) something that is called like the module.
Compile = Callable[[nn.Module, bool], Callable[..., Any]]


class SubjectError(Exception):
    """A subject that doesn't exist or can't be imported; the text is one line."""


@dataclass(frozen=True)
class Subject:
    """One way to run a module.

    public: users can run it, so what it shows is a finding by itself;
    cxx: it needs a C++ compiler on CPU.
    """

    name: str
    public: bool
    compile: Compile
    cxx: bool = False


def named(name: str) -> Subject:
    """The subject behind `package.module:function`, where `function(module)` gives a callable. Raises `SubjectError`."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SubjectError(f"subject {name!r} can't be imported: {error}") from error
    if not callable(function):
        raise SubjectError(f"subject {name!r} is not a function")
    return Subject(name, public=True, compile=lambda module, _dynamic: function(module))
