"""Matches of Inductor's attention patterns, as graphs to run: the matched part of a program, its replacement, and the
pattern itself."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.check.judge.operations import decompose_fused, is_fused
from fuzz.check.judge.verdict import order_dims
from fuzz.check.prove.pattern_constants import (
    Unlike,
    find_differences,
    find_origin,
    read_outputs,
    trace_pattern,
    trace_values,
)
from fuzz.check.torch_api.coverage import rewrite_name
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.torch_internals import find, intercept, require
from fuzz.protocol.rewrites import OtherConstant, find_attention_pattern

_APPLY = ("torch._inductor.pattern_matcher", "ReplacementPatternEntry.apply")
_PATTERNS = "torch._inductor.fx_passes.fuse_attention"
SDPA_OF_PATTERNS = (_PATTERNS, "_scaled_dot_product_attention")
"""The function that replacements call."""
_PIPELINE = "torch._inductor.compile_fx"


_UNREAD_RESULTS = 12
"""The most results of a fused call beyond the results of its definition: statistics and random states, never read."""


class Float64Interpreter(fx.Interpreter):
    """Runs fused calls by their definition. For use within `Float64`."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(target, OpOverload) and is_fused(target):
            return (*decompose_fused(target)(*args, **kwargs), *[None] * _UNREAD_RESULTS)
        if target is torch.ops.prims.convert_element_type.default and args[1].is_floating_point:
            args = (args[0], torch.float64)
        return super().call_function(target, args, kwargs)


@dataclass(frozen=True)
class RewriteMatch:
    """A replacement by a pattern of attention, copied out of its graph."""

    entry: Any
    before: fx.GraphModule  # computes the operands of `taken`, then `free`, from the inputs of the graph
    program: fx.GraphModule  # computes the kept outputs from the operands of `taken` and from `free`
    replacement: fx.GraphModule
    kept: list[int]  # indices of the pattern's outputs that the program reads
    taken: tuple[str, ...]
    """The operands that are graph nodes, by name. A node that serves as two operands has one name."""
    sources: dict[str, str]  # for each operand that is a node, its name in `taken`
    operands: dict[str, Any]  # by the names of the pattern's arguments: numbers, and after `with_inputs` tensors
    free: tuple[Any, ...] = ()  # other values that `program` reads

    @classmethod
    def read(cls, entry: Any, match: Any, graph: fx.Graph) -> "RewriteMatch | None":
        """A copy of the match; None if the replacement is not a graph or has positional operands."""
        if not isinstance(match.replacement_graph, fx.GraphModule) or match.args:
            return None
        operands = {name: match.kwargs[name] for name in entry.normalize_args(**{name: name for name in match.kwargs})}
        names = {node: name for name, node in reversed(operands.items()) if isinstance(node, fx.Node)}
        inside = set(match.nodes)
        read = dict.fromkeys(source for node in graph.nodes if node in inside for source in node.all_input_nodes)
        given = [*names, *(node for node in read if node not in inside and node not in names)]
        outputs = match.output_nodes()
        kept = [index for index, node in enumerate(outputs) if node is not None]
        owner = graph.owning_module or nn.Module()
        return cls(
            entry,
            before=_copy_part(owner, graph, None, given),
            program=_copy_part(owner, graph, given, [outputs[index] for index in kept]),
            replacement=match.replacement_graph,
            kept=kept,
            taken=tuple(names.values()),
            sources={name: names[node] for name, node in operands.items() if node in names},
            operands=operands,
        )

    def with_inputs(self, inputs: list[Any]) -> "RewriteMatch | None":
        """The match with the values of its operands; None if the inputs do not fit its graph."""
        generator, primals = torch.Generator().manual_seed(0), iter(inputs)
        given: list[Any] = []
        for hole in self.before.graph.nodes:
            if hole.op != "placeholder":
                continue
            like = hole.meta.get("val")
            if str(hole.target).startswith("tangents") and isinstance(like, Tensor):
                drawn = torch.randn([int(size) for size in like.shape], generator=generator, dtype=torch.float64)
                given.append(drawn.to(like.device, like.dtype))
                continue
            value = next(primals, None)
            if isinstance(like, Tensor) and not (
                isinstance(value, Tensor) and value.dim() == like.dim() and value.dtype == like.dtype
            ):
                return None
            given.append(value)
        try:
            with torch.no_grad():
                values = list(fx.Interpreter(self.before).run(*given))
        except (RuntimeError, TypeError):  # a symbolic size without a number
            return None
        known = dict(zip(self.taken, values, strict=False))
        operands = {
            name: known[self.sources[name]] if name in self.sources else value for name, value in self.operands.items()
        }
        return replace(self, operands=operands, free=tuple(values[len(self.taken) :]))

    @property
    def pattern(self) -> str:
        return rewrite_name(self.entry)

    def read_replacement(self) -> tuple[Any, list[Any]]:
        """The function that the replacement was traced from, and the operands that it takes. Raises `SubjectError`."""
        number = find_attention_pattern(self.pattern).removeprefix("sfdp_pattern_")
        function = require(_PATTERNS, f"_sfdp_replacement_{number}")
        names = inspect.signature(function).parameters
        # Patterns for inference have no dropout_p.
        absent = {name: 0.0 for name in names if name not in self.operands}
        return partial(function, **absent), [self.operands[name] for name in names if name not in absent]

    def on_math(self) -> "RewriteMatch | None":
        """The match whose replacement calls the MATH backend; None if that can't be traced."""
        try:
            function, given = self.read_replacement()
            with sdpa_kernel([SDPBackend.MATH]):
                graph = trace_values((function, *find_origin(self.entry)[1:]), given)
        except (Unlike, SubjectError):
            return None
        return replace(self, replacement=graph)

    def run_program(self, operands: dict[str, Any]) -> list[Tensor]:
        return list(Float64Interpreter(self.program).run(*(operands[name] for name in self.taken), *self.free))

    def run_replacement(self, operands: dict[str, Any]) -> list[Tensor]:
        return self._keep(Float64Interpreter(self.replacement).run(*operands.values()))

    def run_pattern(self, operands: dict[str, Any]) -> list[Tensor]:
        """The outputs of the pattern with its own constants. Raises as `trace_pattern`."""
        return self._keep(Float64Interpreter(self._pattern_graph).run(*operands.values()))

    def read_constants(self) -> tuple[OtherConstant, ...]:
        """The constants that differ, if the pattern can be traced."""
        try:
            return tuple(find_differences(self.entry, self.operands, self.kept, read_outputs(self.program)))
        except (Unlike, SubjectError, AttributeError, KeyError):  # the last two: unknown data of torch
            return ()

    def changes_strides(self) -> bool:
        """Whether an output of the replacement has another order of dimensions in memory."""
        for nodes in zip(read_outputs(self.program), self._keep(read_outputs(self.replacement)), strict=True):
            mine, theirs = (getattr(node, "meta", {}).get("val") for node in nodes)
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and order_dims(mine) != order_dims(theirs):
                return True
        return False

    @cached_property
    def _pattern_graph(self) -> fx.GraphModule:
        return trace_pattern(self.entry, self.operands)

    def _keep(self, outputs: Any) -> list[Any]:
        return [outputs[index] for index in self.kept] if isinstance(outputs, (tuple, list)) else [outputs]


class MatchRecorder:
    """Keeps replacements by patterns of attention while `watch` is entered, with the inputs of their graphs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        """Calls of attention while replacements were traced: pattern, arguments (fake tensors), options."""
        self._found: list[tuple[RewriteMatch, list[Any]]] = []
        self._inputs: list[Any] = []
        """The inputs of the graph that is being compiled. A program may have several graphs."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While entered, replacements are kept, if this torch has the hooks."""
        if None in (find(*_APPLY), find(_PIPELINE, "compile_fx"), find(*SDPA_OF_PATTERNS)):
            yield
            return

        def apply_and_record(apply: Any, rewrite: Any, match: Any, graph: fx.Graph, node: fx.Node) -> None:
            if "sfdp" in rewrite_name(rewrite):
                # An exception here would look like an error of torch.
                with suppress(Exception):
                    if (found := RewriteMatch.read(rewrite, match, graph)) is not None:
                        self._found.append((found, self._inputs))
            apply(rewrite, match, graph, node)

        def call_and_note(call: Any, *args: Any, **options: Any) -> Any:
            replacement = sys._getframe(2).f_code.co_name  # the caller of `intercept`'s, such as _sfdp_replacement_5
            self.calls.append((replacement.replace("replacement", "pattern"), args, options))
            return call(*args, **options)

        def compile_and_keep_inputs(
            compile_fx: Any, graph: Any, inputs: Sequence[Any], *args: Any, **options: Any
        ) -> Any:
            plain = [value.node.hint if isinstance(value, torch.SymInt) else value for value in inputs]
            self._inputs = [value.detach() if isinstance(value, Tensor) else value for value in plain]
            return compile_fx(graph, inputs, *args, **options)

        keep_inputs = intercept(_PIPELINE, "compile_fx", compile_and_keep_inputs)
        with intercept(*_APPLY, apply_and_record), intercept(*SDPA_OF_PATTERNS, call_and_note), keep_inputs:
            yield

    def matches(self) -> Iterator[RewriteMatch]:
        """The replacements whose operands are known. Tangents are drawn at random."""
        return (match for found, inputs in self._found if (match := found.with_inputs(inputs)) is not None)


def _copy_part(
    owner: nn.Module, graph: fx.Graph, inputs: list[fx.Node] | None, outputs: list[fx.Node]
) -> fx.GraphModule:
    """The part of a graph that computes `outputs` from `inputs`, by default from its placeholders."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs or ():
        copies[node] = part.placeholder(node.name)
        copies[node].meta = node.meta
    needed, queue = set(copies), list(outputs)
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue += node.all_input_nodes
    waiting = [node for node in graph.nodes if node in needed or (inputs is None and node.op == "placeholder")]
    while waiting := [node for node in waiting if node not in copies]:
        # While patterns are applied, nodes may be out of order.
        node = next(node for node in waiting if all(source in copies for source in node.all_input_nodes))
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(owner, part)
