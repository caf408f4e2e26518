"""Whether a compiler compiles. Compiled code is counted as it runs, and what switches a compiler off is named.

torch.compile does not tell that it is off: programs then run in eager, and every verdict is about eager. So a verdict
on a subject that compiles needs a run of compiled code (`expect`, `require_run`).
"""

import importlib
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from fuzz.check.torch_api.exceptions import SubjectError, is_out_of_memory
from fuzz.check.torch_api.torch_internals import find, intercept_for_good
from fuzz.protocol.failures import Refusal

DYNAMO_GRAPH = "graph"
"""A graph of Dynamo, whichever backend compiled it."""
INDUCTOR_GRAPH = "inductor"
"""A graph of Dynamo that Inductor compiled."""
GRAPH_AFTER_PASSES = "passes"
"""A graph after Inductor's passes (fuzz/check/run/graph_passes.py)."""
COMPILED_FORMS = {"inductor": INDUCTOR_GRAPH, "passes": GRAPH_AFTER_PASSES}
"""By backend, the compiled code that it runs; of others `DYNAMO_GRAPH`."""

_runs = Counter[str]()
_expected = ""
_n_pipelines = 0

_OFF = "switches torch.compile off"
_REPLACED = "replaces the backend of torch.compile"
_LITE = "has Inductor call eager's kernels"


def _is_one(value: str) -> bool:
    return value == "1"


def _is_lite() -> bool:
    return bool(find("torch._inductor.config", "fallback_by_default"))


VARIABLES: dict[str, tuple[Callable[[str], bool], str]] = {
    "TORCHDYNAMO_DISABLE": (_is_one, _OFF),  # _dynamo/eval_frame.py: torch.compile returns its argument
    "TORCH_COMPILE_DISABLE": (_is_one, _OFF),  # _dynamo/convert_frame.py: every frame is skipped
    "TORCHDYNAMO_DEBUG_FUNCTION": (bool, "switches torch.compile off for functions of other names"),  # likewise
    "TORCHDYNAMO_REPRO_AFTER": (bool, "has torch's minifier run the backend"),  # _dynamo/repro/after_dynamo.py
    "TORCH_COMPILE_OVERRIDE_BACKENDS": (bool, _REPLACED),  # _dynamo/output_graph.py
    "TORCH_BISECT_BACKEND": (bool, _REPLACED),  # torch.compile: also of a backend that the caller names
    "TORCH_BISECT_SUBSYSTEM": (bool, "leaves out steps of Inductor"),  # _inductor/compiler_bisector.py
    "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS": (bool, "changes options of Inductor behind its caller"),  # likewise
    "TORCHINDUCTOR_LITE_MODE": (lambda value: value == "1" and _is_lite(), _LITE),  # _inductor/config.py of torch 2.15
}
"""Environment variables that switch compilers off: which of their values do, and how. Comments: where torch reads them.
docs/oracle.md has the variables that do not."""


def find_switch() -> str:
    """Why torch.compile would not compile as subjects do, in one line; "" if nothing says so."""
    for name, (is_off, effect) in VARIABLES.items():
        if is_off(value := os.environ.get(name, "")):
            return f"{name}={value} {effect}: unset it"
    bisector = find("torch._inductor.compiler_bisector", "CompilerBisector")
    status = Path(bisector.get_dir(), "bisect_status.txt") if bisector is not None else None
    if status is not None and status.exists():
        return f"{status}, left by torch's bisector, {_REPLACED}: python -m torch._inductor.compiler_bisector end"
    return next((f"{name} is {value!r}, which {effect}" for name, value, effect in _list_settings() if value), "")


def _list_settings() -> list[tuple[str, object, str]]:
    """Settings of torch that switch compilers off: name, value, how. False values do not."""
    dynamo: Any = importlib.import_module("torch._dynamo.config")
    stance = find("torch._dynamo.eval_frame", "_stance")
    chosen = (stance.stance != "default" and stance.stance) or stance.backend if stance is not None else None
    return [
        ("torch._dynamo.config.disable", dynamo.disable, _OFF),
        ("the stance of torch.compile", chosen, "takes the place of the subject"),
        ("torch._dynamo.config.debug_backend_override", getattr(dynamo, "debug_backend_override", ""), _REPLACED),
        ("torch._inductor.config.fallback_by_default", _is_lite(), _LITE),
    ]


def expect(form: str) -> None:
    """From now on compiled code of this form is expected to run, "" for none."""
    global _expected  # noqa: PLW0603 - a process compiles one subject at a time
    _runs.clear()
    _expected = form


def note_run(form: str) -> None:
    """Count a run of compiled code."""
    _runs[form] += 1


def require_run() -> None:
    """Raises `SubjectError` if no compiled code of the expected form has run.

    A call may run none, as under the stance `eager_on_recompile`, if another call of the case does.
    """
    if _expected and not _runs[_expected]:
        raise SubjectError("eager ran the whole case", Refusal.NOT_COMPILED)


class TryApart(AbstractContextManager[None]):
    """Within it compiled code of before is not met, and none is left. An exception ends the block alone, unless memory
    runs out."""

    def __enter__(self) -> None:
        torch._dynamo.reset()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        torch._dynamo.reset()
        return isinstance(error, Exception) and not is_out_of_memory(error)


def is_compiled_by_dynamo(call: object) -> bool:
    """Whether torch.compile has made this callable. With TORCHDYNAMO_DISABLE it makes none."""
    return hasattr(call, "_torchdynamo_orig_callable") or getattr(call, "_compiled_call_impl", None) is not None


def watch() -> None:
    """Count the runs of graphs that are compiled from now on: once per process, while nothing else hooks into torch."""
    intercept_for_good("torch._inductor.compile_fx", "compile_fx", _count_pipeline)
    intercept_for_good("torch._dynamo.output_graph", "OutputGraph.call_user_compiler", _compile_counted)


def _count_pipeline(pipeline: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    global _n_pipelines  # noqa: PLW0603
    _n_pipelines += 1
    return pipeline(*args, **keywords)


def _compile_counted(compile_graph: Callable[..., Any], *args: Any, **keywords: Any) -> Callable[..., Any]:
    before = _n_pipelines
    compiled = compile_graph(*args, **keywords)
    forms = (DYNAMO_GRAPH, INDUCTOR_GRAPH) if _n_pipelines > before else (DYNAMO_GRAPH,)

    def run(*inputs: Any) -> Any:
        _runs.update(forms)
        return compiled(*inputs)

    return run
