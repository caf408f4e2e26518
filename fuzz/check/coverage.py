"""What a case reached of the compiler: hooks in the pattern matcher, passes and lowerings of Inductor, and counters.

Where this torch lacks a hook, that part of the coverage is missing, and `missing_hooks` says so, also for attribution.
"""

import functools
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from fuzz.check.torch_internals import find, wrap

_MATCHER = "torch._inductor.pattern_matcher"
_PIPELINE = "torch._inductor.compile_fx"
_GRAPH = "torch._inductor.graph"
_LOWERING = "torch._inductor.lowering"
_METRICS = "torch._inductor.metrics"
_COUNTERS = "torch._dynamo.utils"

REWRITES = tuple((_MATCHER, f"{kind}PatternEntry.apply") for kind in ("Replacement", "Graph", "Lowering"))

#: What each part of the coverage, and of attribution, needs: a module and a name in it.
PARTS = {
    "rewrites": REWRITES,
    "operations": ((_PIPELINE, "_recursive_post_grad_passes"),),
    "attention and graphs of the program": ((_PIPELINE, "_recursive_pre_grad_passes"),),
    "lowerings": ((_GRAPH, "GraphLowering.call_function"),),
    "fallbacks": ((_LOWERING, "fallbacks"),),
    "graph breaks and passes": ((_COUNTERS, "counters"),),
    "kernels": ((_METRICS, "generated_kernel_count"),),
    "vectorised kernels": ((_METRICS, "generated_cpp_vec_kernel_count"),),
    "constants of patterns": ((_MATCHER, "_known_precompiled_patterns"),),
    "steps of compiling": (("torch._inductor.compiler_bisector", "CompilerBisector.disable_subsystem"),),
}

#: Counters of Inductor that are no pass of its: caches, clocks, sizes, and totals that other names tell in parts.
_NO_PASS = re.compile(
    r"cache|time|bench|bundler|async|select_algorithm|autotun|extern_calls|pattern_matcher|_nodes$|mem$|memory|overlap|cudagraph"
)
_ATTENTION = re.compile(r"^_scaled_dot_product_|^_flash_attention|^_efficient_attention|^flex_attention")
_VARIES = re.compile(r"""0x[0-9a-f]+|'[^']*'|"[^"]*"|`[^`]*`|\d+""")


class Coverage:
    """While entered, collects what is reached.

    `fired` are the names of the rewrites that were applied: a replacement gives its pattern's name
    ("_sfdp_pattern_5_inference"), any other rewrite its handler's ("mul_softmax_pattern"). `reached` is everything
    else, a kind and a name each: "op aten.bmm" (of a graph after all passes), "lowering aten.addmm", "fallback
    aten.sort", "sdpa _scaled_dot_product_flash_attention_for_cpu", "graph_break Call to ...", "kernels cpp 3-4", "pass
    pad_mm", "graphs 2" where a program was compiled again or in parts, "graphs dynamic" with sizes as arguments.
    """

    def __init__(self) -> None:
        self._fired: Counter[str] = Counter()
        self._reached: set[str] = set()
        self._requested = self._graphs = 0
        self._fused: set[Any] = set()  # a graph is seen again within the one around it
        self._devices: set[str] = set()
        self._hooks = ExitStack()
        self._before: dict[str, Counter[str]] = {}

    @property
    def fired(self) -> tuple[str, ...]:
        """The rewrites so far, sorted."""
        return tuple(sorted(self._fired))

    @property
    def reached(self) -> tuple[str, ...]:
        """Everything else so far, sorted."""
        requested = self._requested + sum(n for name, n in self._fired.items() if "sfdp" in name)
        math = {"sdpa math"} if requested > len(self._fused) else set[str]()
        graphs = {f"graphs {_bucket(self._graphs)}"} if self._graphs > 1 else set[str]()
        return tuple(sorted(self._reached | math | graphs))

    def __enter__(self) -> None:
        for module, path in REWRITES:
            self._hook(module, path, self._note_rewrite)
        self._hook(_PIPELINE, "_recursive_pre_grad_passes", self._note_program)
        self._hook(_PIPELINE, "_recursive_post_grad_passes", self._note_operations, after=True)
        self._hook(_GRAPH, "GraphLowering.call_function", self._note_lowering, after=True)
        self._before = _count()

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        for group, counts in _count().items():
            new = counts - self._before.get(group, Counter())
            if group == "kernels":
                plain = "triton" if "cuda" in self._devices else "cpp"
                self._reached.update(f"kernels {plain if kind == 'all' else kind} {_bucket(new[kind])}" for kind in new)
            else:
                self._reached.update(f"{group} {name}" for name in new)

    def _hook(self, module: str, path: str, note: Callable[..., None], *, after: bool = False) -> None:
        def make(original: Any) -> Any:
            def call_and_note(*args: Any, **kwargs: Any) -> Any:
                if not after:
                    note(*args)
                result = original(*args, **kwargs)
                if after:
                    note(*args)
                return result

            return call_and_note

        if find(module, path) is not None:
            self._hooks.enter_context(wrap(module, path, make))

    def _note_rewrite(self, entry: Any, *_: Any) -> None:
        self._fired[rewrite_name(entry)] += 1

    def _note_program(self, graph: Any, *_: Any) -> None:
        self._graphs += 1
        values = (node.meta.get("example_value") for node in _nodes(graph) if node.op == "placeholder")
        if any(isinstance(value, torch.SymInt) for value in values):
            self._reached.add("graphs dynamic")
        names = [getattr(node.target, "__name__", "") for node in _nodes(graph)]
        self._requested += names.count("scaled_dot_product_attention")

    def _note_operations(self, graph: Any, *_: Any) -> None:
        for node in (node for part in graph.modules() for node in _nodes(part)):
            if node.op == "call_function" and (name := _operation(node.target)):
                self._reached.add(f"op {name}")
                short = name.rpartition(".")[2]
                if _ATTENTION.match(short):
                    self._reached.add(f"sdpa {short}")
                    if not short.endswith("_backward"):
                        self._fused.add(node)

    def _note_lowering(self, graph: Any, target: Any, *_: Any) -> None:
        if name := _operation(target):
            is_fallback = target in (find(_LOWERING, "fallbacks") or ())
            self._reached.add(f"{'fallback' if is_fallback else 'lowering'} {name}")
        self._devices.update(getattr(graph, "device_types", ()))


def missing_hooks() -> dict[str, str]:
    """By part of the coverage, the names in torch that it needs and this torch lacks."""
    lacks = {
        part: ", ".join(f"{module}.{name}" for module, name in needs if find(module, name) is None)
        for part, needs in PARTS.items()
    }
    return {part: names for part, names in lacks.items() if names}


def _count() -> dict[str, Counter[str]]:
    counters = find(_COUNTERS, "counters") or {}
    passes, breaks = Counter[str](), Counter[str]()
    for name, count in counters.get("inductor", {}).items():
        if not _NO_PASS.search(str(name)):
            passes[str(name).removesuffix("_count")] += count
    for reason, count in counters.get("graph_break", {}).items():
        # The first line, without what varies from case to case.
        first = str(reason).strip().partition("\n")[0]
        breaks[" ".join(_VARIES.sub("", first).split())[:60].rstrip(" :,.")] += count
    names = {"all": "generated_kernel_count", "cpp_vec": "generated_cpp_vec_kernel_count"}
    kernels = Counter({kind: find(_METRICS, name) or 0 for kind, name in names.items()})
    return {"pass": passes, "graph_break": breaks, "kernels": kernels}


def _bucket(count: int) -> str:
    """A power of two and the numbers above half of it: "1", "2", "3-4", "5-8", ..."""
    top = 1 << (count - 1).bit_length()
    return str(count) if count <= 2 else f"{top // 2 + 1}-{top}"


def _nodes(graph: Any) -> Any:
    return getattr(getattr(graph, "graph", None), "nodes", ())


def _operation(target: Any) -> str:
    """The name of an operation on tensors without its overload, such as "aten.bmm"; empty for anything else."""
    if getattr(target, "__module__", None) == operator.__name__ or isinstance(target, str):
        return ""
    packet = getattr(target, "overloadpacket", None)
    if packet is not None:
        return str(packet)
    name = getattr(target, "__name__", "")
    return str(name) if hasattr(target, "_schema") or hasattr(target, "namespace") else ""


def rewrite_name(entry: Any) -> str:
    """The name of a rewrite, an entry of the pattern matcher."""
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
