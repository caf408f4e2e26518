"""Inductor's own graph passes, and the graph they leave run operation by operation.

Pre-grad, joint, partition and post-grad passes are Inductor's, called as it calls them; lowering, scheduling and code
generation are left out, and with them the C++ compiler. Matches that post-grad patterns would hand to lowerings
(fused matmul templates) are left as they were. The only module that touches Inductor's compile pipeline.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _python_dispatch

from fuzz.check.subjects.subject import Subject, SubjectError


def _compile(module: nn.Module, dynamic: bool) -> Callable[..., Any]:
    _pipeline()
    return torch.compile(module, backend=_backend, dynamic=dynamic)


def _backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return _pipeline().compile_fx(graph, inputs, inner_compile=_interpreted)


@functools.cache
def _pipeline() -> Any:
    """torch._inductor.compile_fx. Raises `SubjectError` where it lacks a part that is needed here."""
    pipeline = importlib.import_module("torch._inductor.compile_fx")
    for name in ("compile_fx", "fake_tensor_prop", "view_to_reshape", "_recursive_post_grad_passes", "V"):
        if not hasattr(pipeline, name):
            raise SubjectError(f"torch {torch.__version__} has no torch._inductor.compile_fx.{name}: no subject passes")
    return pipeline


def _interpreted(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
    # Mirrors _InProcessFxCompile.codegen_and_compile up to GraphLowering.
    pipeline = _pipeline()
    with _python_dispatch._disable_current_modes():
        pipeline.view_to_reshape(graph)
        with torch.no_grad():
            fake_mode = pipeline.fake_tensor_prop(graph, inputs)
        with pipeline.V.set_fake_mode(fake_mode), _lowerings_left_out():
            pipeline._recursive_post_grad_passes(graph, is_inference=options.get("is_inference", False))
    interpreter = torch.fx.Interpreter(graph)
    interpreter.extra_traceback = False

    def run(arguments: list[Any]) -> Any:
        return interpreter.boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextmanager
def _lowerings_left_out() -> Iterator[None]:
    entry: Any = importlib.import_module("torch._inductor.pattern_matcher").LoweringPatternEntry
    apply = entry.apply
    entry.apply = lambda *_: None
    try:
        yield
    finally:
        entry.apply = apply


SUBJECT = Subject("passes", compile=_compile)
