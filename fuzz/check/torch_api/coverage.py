"""Coverage of the compiler, by hooks in Inductor's pattern matcher, passes and lowerings.

`missing_hooks` lists the kinds of coverage and attribution that this torch can't give.
"""

import functools
import operator
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fuzz.check.torch_api.torch_internals import find, intercept
from fuzz.protocol import CoverageItem, CoverageKind

_MATCHER = "torch._inductor.pattern_matcher"
_PIPELINE = "torch._inductor.compile_fx"
_GRAPH = "torch._inductor.graph"
_LOWERING = "torch._inductor.lowering"

REWRITES = tuple((_MATCHER, f"{kind}PatternEntry.apply") for kind in ("Replacement", "Graph", "Lowering"))

#: The hooks of each kind of coverage and attribution: a module and a name in it.
PARTS = {
    "rewrites": REWRITES,
    "operations": ((_PIPELINE, "_recursive_post_grad_passes"),),
    "lowerings": ((_GRAPH, "GraphLowering.call_function"),),
    "fallbacks": ((_LOWERING, "fallbacks"),),
    "constants of patterns": ((_MATCHER, "_known_precompiled_patterns"),),
    "steps of compiling": (("torch._inductor.compiler_bisector", "CompilerBisector.disable_subsystem"),),
}


class Coverage:
    """While entered, collects the rewrites, operations, lowerings and fallbacks of the programs that compile."""

    def __init__(self) -> None:
        self.applied_rewrites: set[str] = set()
        """A replacement has the name of its pattern ("_sfdp_pattern_5_inference"), another rewrite the name of its
        handler ("mul_softmax_pattern")."""
        self.items: set[CoverageItem] = set()  # operations, lowerings and fallbacks
        self._hooks = ExitStack()

    def __enter__(self) -> None:
        for module, path in REWRITES:
            self._hook(module, path, lambda entry, *_: self.applied_rewrites.add(rewrite_name(entry)))
        self._hook(_PIPELINE, "_recursive_post_grad_passes", self._note_operations)
        self._hook(_GRAPH, "GraphLowering.call_function", self._note_lowering)

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _hook(self, module: str, path: str, note: Callable[..., None]) -> None:
        def call_and_note(original: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                note(*args)

        if find(module, path) is not None:
            self._hooks.enter_context(intercept(module, path, call_and_note))

    def _note_operations(self, graph: Any, *_: Any) -> None:
        for node in (node for part in graph.modules() for node in getattr(getattr(part, "graph", None), "nodes", ())):
            if node.op == "call_function" and (name := name_operation(node.target)):
                self.items.add(CoverageItem(CoverageKind.OP, name))

    def _note_lowering(self, _graph: Any, target: Any, *_: Any) -> None:
        if name := name_operation(target):
            is_fallback = target in (find(_LOWERING, "fallbacks") or ())
            self.items.add(CoverageItem(CoverageKind.FALLBACK if is_fallback else CoverageKind.LOWERING, name))


def missing_hooks() -> dict[str, str]:
    """The names that this torch lacks, by kind of coverage."""
    lacks = {
        part: ", ".join(f"{module}.{name}" for module, name in needs if find(module, name) is None)
        for part, needs in PARTS.items()
    }
    return {part: names for part, names in lacks.items() if names}


def name_operation(target: Any) -> str:
    """The name of an operation on tensors without its overload, such as "aten.bmm"; "" for another function."""
    if getattr(target, "__module__", None) == operator.__name__ or isinstance(target, str):
        return ""
    packet = getattr(target, "overloadpacket", None)
    if packet is not None:
        return str(packet)
    name = getattr(target, "__name__", "")
    return str(name) if hasattr(target, "_schema") or hasattr(target, "namespace") else ""


def rewrite_name(entry: Any) -> str:
    name = getattr(entry, "pattern_name", None) or _find_serialized_name(entry.pattern)
    return str(name or getattr(getattr(entry, "handler", None), "__name__", None) or type(entry.pattern).__name__)


@functools.lru_cache(4096)
def _find_serialized_name(pattern: Any) -> str | None:
    # Before torch 2.12 entries don't know their names: find the module that defines the pattern.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch._inductor.fx_passes.serialized_patterns."):
            for name, value in vars(module).items():
                if value is pattern:
                    return name
    return None
