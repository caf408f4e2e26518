"""Places in the source of torch: of exceptions and of steps of compiling."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from fuzz.check.torch_api.torch_internals import find
from fuzz.protocol.places import LocatedBy, Place

HOME = str(Path(torch.__file__).parent)
"""The torch package."""
_ROOT = f"{HOME}/"
_COMPILER = "_inductor/ _dynamo/ _functorch/ _subclasses/ _higher_order_ops/ _decomp/ _refs/ _prims"
_COMPILER += " _meta_registrations.py _export/ export/ fx/ distributed/"
_TRACING = "torch.fx.experimental.proxy_tensor"
_RUNNERS = ("_inductor/cpp_builder.py", "_inductor/codecache.py", "_inductor/runtime/", "_inductor/output_code.py")
"""They compile and run generated code, whose faults are elsewhere."""
_PASSES_ON = ("__torch_function__", "__torch_dispatch__")
"""Methods of modes, which call what they are asked for."""


def make_place(code: CodeType, line: int, found: LocatedBy) -> Place:
    """The place of a line of a function."""
    return Place(name_file(code.co_filename), line, _name(code), found)


def _name(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on


def name_file(file: str) -> str:
    """A file relative to the torch package; for other files the bare name."""
    return file.removeprefix(_ROOT) if file.startswith(_ROOT) else Path(file).name


def find_raising(error: BaseException) -> Place | None:
    """The innermost line of the compiler or of DTensor in the traceback of an exception; None for a fault of generated
    code."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = name_file(frame.f_code.co_filename)
        is_code = file.endswith(".py")  # torch names generated code "FILE.py:codegen(...)"
        if is_code and file.startswith(tuple(_COMPILER.split())) and frame.f_code.co_name not in _PASSES_ON:
            return None if file.startswith(_RUNNERS) else make_place(frame.f_code, line, LocatedBy.RAISED)
    return None


def find_places(step: Any) -> tuple[Place, ...]:
    """The places of a step of compiling: of its function, or of the parts of an entry of the pattern matcher."""
    if callable(step):
        return tuple(_find_function(step, LocatedBy.LEFT_OUT))
    check = step.extra_check
    names = inspect.getclosurevars(check).nonlocals if inspect.isfunction(check) else {}
    parts = [(getattr(step, "handler", None) or names.get("replace_fn"), LocatedBy.REPLACEMENT)]
    parts += [(names.get("search_fn"), LocatedBy.PATTERN), (names.get("extra_check", check), LocatedBy.CHECK)]
    return tuple(place for function, found in parts for place in _find_function(function, found))


def _find_function(function: Any, found: LocatedBy) -> Iterator[Place]:
    """The place of a function without its wrappers."""
    while inner := _unwrap(function):
        function = inner
    if code := getattr(function, "__code__", None):
        yield make_place(code, code.co_firstlineno, found)


def _unwrap(function: Any) -> Any:
    if inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        # A function that only calls a partial one.
        captured = list(inspect.getclosurevars(function).nonlocals.values())
        return captured[0] if len(captured) == 1 and isinstance(captured[0], functools.partial) else None
    names = ("func", "__wrapped__", "__func__")
    return next((inner for name in names if (inner := getattr(function, name, None)) is not None), None)


def find_step(frame: FrameType) -> Callable[..., Any] | None:
    """The function of the step that torch's compiler bisector is asked about in this frame of torch."""
    names = frame.f_locals
    match frame.f_code.co_name:
        case "maybe_handle_decomp":
            table = names.get("decomp_table") or find(_TRACING, "CURRENT_DECOMPOSITION_TABLE") or {}
            found = table.get(names.get("op"))
        case "run_node":
            found = (find("torch._inductor.lowering", "lowerings") or {}).get(getattr(names.get("n"), "target", None))
        case _:
            found = frame.f_back and frame.f_back.f_locals.get("pass_fn")
    return found if callable(found) else None
