"""A backend that runs Inductor's own graph passes, and then the resulting graph, operation by operation.

Pre-grad, joint, partition and post-grad passes are called as Inductor calls them. Lowering, scheduling and code
generation, which take the C++ compiler, are left out. Matches of post-grad patterns for lowerings (fused matmul
templates) stay as they are. Only this module touches Inductor's compile pipeline.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils import _python_dispatch

from fuzz.check.torch_internals import find, require, wrap

_PIPELINE, _MATCHER = "torch._inductor.compile_fx", "torch._inductor.pattern_matcher"


def backend(around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Callable[..., Any]:
    """The backend for torch.compile. The resulting graph runs within `around()`. Raises `SubjectError` where this torch
    lacks a part of the pipeline."""
    for name in ("compile_fx", "fake_tensor_prop", "view_to_reshape", "_recursive_post_grad_passes", "V"):
        require(_PIPELINE, name)
    require(_MATCHER, "LoweringPatternEntry.apply")
    return partial(require(_PIPELINE, "compile_fx"), inner_compile=partial(_interpret, around))


def _interpret(
    around: Callable[[], AbstractContextManager[Any]],
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    **options: Any,
) -> Callable[[list[Any]], Any]:
    # Mirrors _InProcessFxCompile.codegen_and_compile up to GraphLowering.
    pipeline: Any = importlib.import_module(_PIPELINE)
    with _python_dispatch._disable_current_modes():
        pipeline.view_to_reshape(graph)
        with torch.no_grad():
            fake_mode = pipeline.fake_tensor_prop(graph, inputs)
        strides = _read_output_strides(graph)
        left_out = wrap(_MATCHER, "LoweringPatternEntry.apply", lambda _: lambda *_: None)
        with pipeline.V.set_fake_mode(fake_mode), left_out:
            pipeline._recursive_post_grad_passes(graph, is_inference=options.get("is_inference", False))
    interpreter = torch.fx.Interpreter(graph)
    interpreter.extra_traceback = False

    def run(arguments: list[Any]) -> Any:
        with around():
            outputs = list(interpreter.boxed_run(arguments))
        for index, wanted in strides.items():
            outputs[index] = _restride(outputs[index], wanted)
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _read_output_strides(graph: torch.fx.GraphModule) -> dict[int, tuple[int, ...]]:
    """The strides of outputs that users see, which lowering restores after passes change them. torch 2.15 takes the
    strides before the joint passes, earlier versions after them."""
    record = find(_PIPELINE, "record_original_output_strides")
    if record is not None:
        record(graph)
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    strides = output.meta.get("original_output_strides", ())
    seen = {index: tuple(strides[index] or ()) for index in output.meta.get("user_visible_output_idxs", ()) if strides}
    return {index: own for index, own in seen.items() if all(type(step) is int and step for step in own)}


def _restride(value: Any, strides: tuple[int, ...]) -> Any:
    if not isinstance(value, torch.Tensor) or len(strides) != value.dim() or value.stride() == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)
