"""What a case reached of the compiler: hooks in the pattern matcher, passes and lowerings of Inductor, and counters.

Where this torch lacks a hook, that part of the coverage is missing, and `missing_hooks` says so.
"""

import importlib
import inspect
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.check.torch_internals import find

_MATCHER = "torch._inductor.pattern_matcher"
_PIPELINE = "torch._inductor.compile_fx"
_GRAPH = "torch._inductor.graph"
_LOWERING = "torch._inductor.lowering"
_METRICS = "torch._inductor.metrics"
_COUNTERS = "torch._dynamo.utils"

#: What each part of the coverage needs: a module and a name in it.
PARTS = {
    "rewrites": (
        (_MATCHER, "ReplacementPatternEntry.apply"),
        (_MATCHER, "GraphPatternEntry.apply"),
        (_MATCHER, "LoweringPatternEntry.apply"),
    ),
    "operations": ((_PIPELINE, "_recursive_post_grad_passes"),),
    "attention of the program": ((_PIPELINE, "_recursive_pre_grad_passes"),),
    "lowerings": ((_GRAPH, "GraphLowering.call_function"),),
    "fallbacks": ((_LOWERING, "fallbacks"),),
    "graph breaks and passes": ((_COUNTERS, "counters"),),
    "kernels": ((_METRICS, "generated_kernel_count"),),
    "vectorised kernels": ((_METRICS, "generated_cpp_vec_kernel_count"),),
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
    pad_mm".
    """

    def __init__(self) -> None:
        self._fired: Counter[str] = Counter()
        self._reached: set[str] = set()
        self._attentions = Counter[str]()
        self._devices: set[str] = set()
        self._originals: list[tuple[Any, str, Any]] = []
        self._before: dict[str, Counter[str]] = {}

    @property
    def fired(self) -> tuple[str, ...]:
        """The rewrites so far, sorted."""
        return tuple(sorted(self._fired))

    @property
    def reached(self) -> tuple[str, ...]:
        """Everything else so far, sorted."""
        requested = self._attentions["requested"] + sum(n for name, n in self._fired.items() if "sfdp" in name)
        math = {"sdpa math"} if requested > self._attentions["fused"] else set[str]()
        return tuple(sorted(self._reached | math))

    def __enter__(self) -> None:
        for module, path in PARTS["rewrites"]:
            self._hook(module, path, self._note_rewrites)
        self._hook(_PIPELINE, "_recursive_pre_grad_passes", self._note_programs)
        self._hook(_PIPELINE, "_recursive_post_grad_passes", self._note_graphs)
        self._hook(_GRAPH, "GraphLowering.call_function", self._note_lowerings)
        self._before = _count()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)
        for group, counts in _count().items():
            new = counts - self._before.get(group, Counter())
            if group == "kernels":
                self._reached.update(self._kernels(new))
            else:
                self._reached.update(f"{group} {name}" for name in new)

    def _hook(self, module: str, path: str, wrap: Callable[[Any], Any]) -> None:
        original = find(module, path)
        if original is not None:
            owner_path, _, name = path.rpartition(".")
            owner = find(module, owner_path) if owner_path else sys.modules[module]
            self._originals.append((owner, name, original))
            setattr(owner, name, wrap(original))

    def _note_rewrites(self, apply: Any) -> Any:
        def noted(entry: Any, *args: Any, **kwargs: Any) -> Any:
            self._fired[rewrite_name(entry)] += 1
            return apply(entry, *args, **kwargs)

        return noted

    def _note_programs(self, passes: Any) -> Any:
        def noted(graph: Any, *args: Any, **kwargs: Any) -> Any:
            for node in getattr(getattr(graph, "graph", None), "nodes", ()):
                if getattr(node.target, "__name__", "") == "scaled_dot_product_attention":
                    self._attentions["requested"] += 1
            return passes(graph, *args, **kwargs)

        return noted

    def _note_graphs(self, passes: Any) -> Any:
        depth = [0]

        def noted(graph: Any, *args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                return passes(graph, *args, **kwargs)
            finally:
                # It calls itself for the graphs inside a graph.
                depth[0] -= 1
                if not depth[0]:
                    self._note_operations(graph)

        return noted

    def _note_operations(self, graph: Any) -> None:
        for part in graph.modules():
            for node in getattr(getattr(part, "graph", None), "nodes", ()):
                if node.op == "call_function" and (name := _operation(node.target)):
                    self._reached.add(f"op {name}")
                    short = name.rpartition(".")[2]
                    if _ATTENTION.match(short):
                        self._reached.add(f"sdpa {short}")
                        self._attentions["fused"] += not short.endswith("_backward")

    def _note_lowerings(self, call_function: Any) -> Any:
        fallbacks = find(_LOWERING, "fallbacks") or ()

        def noted(graph: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            lowered = call_function(graph, target, *args, **kwargs)
            name = _operation(target)
            if name:
                self._reached.add(f"{'fallback' if target in fallbacks else 'lowering'} {name}")
            self._devices.update(getattr(graph, "device_types", ()))
            return lowered

        return noted

    def _kernels(self, new: Counter[str]) -> list[str]:
        plain = "triton" if "cuda" in self._devices else "cpp"
        return [f"kernels {plain if kind == 'all' else kind} {_bucket(count)}" for kind, count in new.items()]


def missing_hooks() -> dict[str, str]:
    """By part of the coverage, the names in torch that it needs and this torch lacks."""
    lacks = {
        part: ", ".join(f"{module}.{name}" for module, name in needs if find(module, name) is None)
        for part, needs in PARTS.items()
    }
    return {part: names for part, names in lacks.items() if names}


def attention_patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the rewrites that make a fused attention of a spelled-out one."""
    return tuple(name for name in names if "sfdp" in name)


@dataclass(frozen=True)
class Pattern:
    """An attention pattern of torch.

    `same_as`: the pattern registered first with the same graph; `after`: the pattern tried earlier whose forward graph
    covers this one; `refuses_cuda`: its check refuses CUDA.
    """

    name: str
    same_as: str = ""
    after: str = ""
    refuses_cuda: bool = False


def registered_patterns(device: str) -> list[Pattern]:
    """All attention patterns for `device`, in the order in which they are tried.

    Raises ImportError or AttributeError naming what is missing, in a torch that keeps them elsewhere.
    """
    where = torch.device(device)
    joint = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    fuse = importlib.import_module("torch._inductor.fx_passes.fuse_attention")
    joint.lazy_init(where)
    registered = {rewrite_name(entry) for entries in joint.patterns.patterns.values() for entry in entries}
    earlier: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    found = []
    with FakeTensorMode():
        listed = list(fuse._get_sfdp_patterns(where))
    for name, how in listed:
        module = importlib.import_module(f"torch._inductor.fx_passes.serialized_patterns.{how['search_fn'].__name__}")
        graph = getattr(module, name)
        text = importlib.import_module(_MATCHER).PatternPrettyPrinter.run(graph)
        first = skipped.setdefault(text, name)
        after = next((other for other, before in earlier.items() if _covers(before, graph)), "")
        if name in registered:
            earlier[name] = graph
        found.append(
            Pattern(
                name,
                same_as="" if name in registered else first,
                after=after if name in registered else "",
                refuses_cuda=bool(inspect.getclosurevars(how["extra_check"]).nonlocals.get("disable_cuda")),
            )
        )
    return found


def _covers(general: Any, special: Any) -> bool:
    """Whether the graph of one pattern, forwards, is found wherever that of another is."""
    return _stands_for(_forward(general), _forward(special), {}, root=True)


def _forward(pattern: Any) -> Any:
    return pattern.outputs[0] if hasattr(pattern, "outputs") else pattern


def _stands_for(general: Any, special: Any, bound: dict[str, Any], *, root: bool = False) -> bool:
    kind = type(general).__name__
    if kind == "Ignored":
        return True
    if kind == "KeywordArg":
        # One name stands for one value, and a name for a name.
        key = f"name {special.name}" if type(special).__name__ == "KeywordArg" else id(special)
        return bool(bound.setdefault(general.name, key) == key)
    if not hasattr(general, "fns"):
        return type(general) is type(special) and bool(general == special)
    if type(general) is not type(special) or general.fns != special.fns or len(general.args) != len(special.args):
        return False
    if general.kwargs.keys() != special.kwargs.keys() or not (root or general.users == special.users):
        return False
    pairs = [*zip(general.args, special.args, strict=True)]
    pairs += [(value, special.kwargs[key]) for key, value in general.kwargs.items()]
    return all(_stands_for(one, other, bound) for one, other in pairs)


def _count() -> dict[str, Counter[str]]:
    counters = find(_COUNTERS, "counters") or {}
    passes = Counter[str]()
    for name, count in counters.get("inductor", {}).items():
        if not _NO_PASS.search(str(name)):
            passes[str(name).removesuffix("_count")] += count
    breaks = Counter[str]()
    for reason, count in counters.get("graph_break", {}).items():
        breaks[_reason(str(reason))] += count
    kernels = Counter[str]()
    for kind, name in (("all", "generated_kernel_count"), ("cpp_vec", "generated_cpp_vec_kernel_count")):
        kernels[kind] = find(_METRICS, name) or 0
    return {"pass": passes, "graph_break": breaks, "kernels": kernels}


def _reason(text: str) -> str:
    """The first line of a reason, without what varies from case to case."""
    first = text.strip().partition("\n")[0]
    return " ".join(_VARIES.sub("", first).split())[:60].rstrip(" :,.")


def _bucket(count: int) -> str:
    """A power of two and the numbers above half of it: "1", "2", "3-4", "5-8", ..."""
    if count <= 2:
        return str(count)
    top = 1 << (count - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


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
    name = getattr(entry, "pattern_name", None) or _serialized_name(entry.pattern)
    if name:
        return str(name)
    handler = getattr(entry, "handler", None)
    return str(getattr(handler, "__name__", None) or type(entry.pattern).__name__)


def _serialized_name(pattern: Any) -> str | None:
    # Before torch 2.12 entries don't know their names: find the module that defines the pattern.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch._inductor.fx_passes.serialized_patterns."):
            for name, value in vars(module).items():
                if value is pattern:
                    return name
    return None
