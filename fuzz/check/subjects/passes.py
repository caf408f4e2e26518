"""Inductor's own graph passes, and the graph they leave run operation by operation.

Pre-grad, joint, partition and post-grad passes are Inductor's, called as it calls them; lowering, scheduling and code
generation are left out, and with them the C++ compiler. Matches that post-grad patterns would hand to lowerings
(fused matmul templates) are left as they were. The only module that touches Inductor's compile pipeline.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fuzz.check.subjects.subject import Subject, SubjectError

try:
    from torch._inductor.compile_fx import (
        _recursive_post_grad_passes,
        compile_fx,
        fake_tensor_prop,
        view_to_reshape,
    )
    from torch._inductor.pattern_matcher import LoweringPatternEntry
    from torch._inductor.virtualized import V
except ImportError as _error:
    _missing: str | None = f"this torch has no {_error.name or 'pipeline'} for the subject passes: {_error}"
else:
    _missing = None


def compile(module: nn.Module, dynamic: bool) -> Callable[..., Any]:  # noqa: A001
    """`module` behind Inductor's passes. Raises `SubjectError` on a torch whose pipeline has another form."""
    if _missing:
        raise SubjectError(_missing)
    return torch.compile(module, backend=_backend, dynamic=dynamic)


def _backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return compile_fx(graph, inputs, inner_compile=_interpreted)


def _interpreted(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
    # Mirrors _InProcessFxCompile.codegen_and_compile up to GraphLowering.
    with torch.utils._python_dispatch._disable_current_modes():
        view_to_reshape(graph)
        with torch.no_grad():
            fake_mode = fake_tensor_prop(graph, inputs)
        with V.set_fake_mode(fake_mode), _lowerings_left_out():
            _recursive_post_grad_passes(graph, is_inference=options.get("is_inference", False))
    interpreter = torch.fx.Interpreter(graph)
    interpreter.extra_traceback = False

    def run(arguments: list[Any]) -> Any:
        return interpreter.boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _lowerings_left_out:  # noqa: N801
    def __enter__(self) -> None:
        self._apply = LoweringPatternEntry.apply
        LoweringPatternEntry.apply = lambda *_: None

    def __exit__(self, *_: object) -> None:
        LoweringPatternEntry.apply = self._apply


SUBJECT = Subject("passes", public=False, compile=compile)
