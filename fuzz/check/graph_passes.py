"""A backend that runs Inductor's own graph passes, then the graph they leave, operation by operation.

Pre-grad, joint, partition and post-grad passes are Inductor's, called as it calls them. Lowering, scheduling and code
generation are left out, and with them the C++ compiler. Matches that post-grad patterns hand to lowerings (fused matmul
templates) stay as they were. The only module that touches Inductor's compile pipeline.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch

from fuzz.check.torch_internals import require

_PIPELINE, _MATCHER = "torch._inductor.compile_fx", "torch._inductor.pattern_matcher"


def backend() -> Callable[..., Any]:
    """The backend, for torch.compile. Raises `SubjectError` where this torch lacks a part of it."""
    for name in ("compile_fx", "fake_tensor_prop", "view_to_reshape", "_recursive_post_grad_passes", "V"):
        require(_PIPELINE, name)
    require(_MATCHER, "LoweringPatternEntry.apply")
    return _backend


def _backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return require(_PIPELINE, "compile_fx")(graph, inputs, inner_compile=_interpret)


def _interpret(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
    # Mirrors _InProcessFxCompile.codegen_and_compile up to GraphLowering.
    pipeline: Any = importlib.import_module(_PIPELINE)
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
    entry = require(_MATCHER, "LoweringPatternEntry")
    apply = entry.apply
    entry.apply = lambda *_: None
    try:
        yield
    finally:
        entry.apply = apply
