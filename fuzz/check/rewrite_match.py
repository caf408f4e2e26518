"""The replaced parts of programs and their replacements by patterns of Inductor, as graphs that run on the operands.

Only this module looks into a `ReplacementPatternEntry` and its match.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from fuzz.check.coverage import rewrite_name
from fuzz.check.exact_graph import read_inputs, read_outputs
from fuzz.check.exceptions import SubjectError
from fuzz.check.oracle.verdict import order_dims
from fuzz.check.pattern_constants import Unlike, find_differences, trace_pattern
from fuzz.check.torch_internals import find, wrap

_APPLY = ("torch._inductor.pattern_matcher", "ReplacementPatternEntry.apply")
_PIPELINE = "torch._inductor.compile_fx"


@dataclass(frozen=True)
class RewriteMatch:
    """A replacement by a pattern of attention, copied out of its graph."""

    entry: Any
    before: fx.GraphModule  # computes the operands of `taken`, then `free`, from the inputs of the graph
    program: fx.GraphModule  # computes the kept outputs from the operands of `taken` and from `free`
    replacement: fx.GraphModule
    kept: list[int]  # the places of the pattern's outputs that are read
    taken: tuple[str, ...]
    """A name for each operand that is a node. Query and key may be one node."""
    sources: dict[str, str]  # by the name of an operand, its name in `taken`
    operands: dict[str, Any]  # by the names of the pattern's arguments: numbers, and after `with_inputs` tensors
    free: tuple[Any, ...] = ()  # other values that `program` reads

    @classmethod
    def read(cls, entry: Any, match: Any, graph: fx.Graph) -> "list[RewriteMatch]":
        """The match, in a list; an empty list if its replacement is no graph, or takes operands without names."""
        if not isinstance(match.replacement_graph, fx.GraphModule) or match.args:
            return []
        operands = {name: match.kwargs[name] for name in entry.normalize_args(**{name: name for name in match.kwargs})}
        names = {node: name for name, node in reversed(operands.items()) if isinstance(node, fx.Node)}
        inside = set(match.nodes)
        read = dict.fromkeys(source for node in graph.nodes if node in inside for source in node.all_input_nodes)
        given = [*names, *(node for node in read if node not in inside and node not in names)]
        outputs = match.output_nodes()
        kept = [index for index, node in enumerate(outputs) if node is not None]
        owner = graph.owning_module or nn.Module()
        return [
            cls(
                entry,
                before=_copy_part(owner, graph, None, given),
                program=_copy_part(owner, graph, given, [outputs[index] for index in kept]),
                replacement=match.replacement_graph,
                kept=kept,
                taken=tuple(names.values()),
                sources={name: names[node] for name, node in operands.items() if node in names},
                operands=operands,
            )
        ]

    def with_inputs(self, inputs: list[Any]) -> "RewriteMatch | None":
        """The match with the values of its operands; None where the inputs do not fit its graph."""
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
        """The name of the pattern."""
        return rewrite_name(self.entry)

    def run_program(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """The outputs of the program for operands, before the rewrite."""
        return list(interpreter(self.program).run(*(operands[name] for name in self.taken), *self.free))

    def run_replacement(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """The outputs after the rewrite."""
        return self._keep(interpreter(self.replacement).run(*operands.values()))

    def run_pattern(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """The outputs of the pattern with its own constants. Raises as `trace_pattern`."""
        return self._keep(interpreter(self._pattern_graph).run(*operands.values()))

    def read_constants(self) -> tuple[str, ...]:
        """The operations whose constants differ, with those of the program and the pattern, if they can be compared."""
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
        self._found: list[tuple[RewriteMatch, list[Any]]] = []
        self._inputs: list[Any] = []
        """Of the graph that is compiled now. A program may be several graphs."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While entered, replacements are kept, if this torch has the hooks."""
        if find(*_APPLY) is None or find(_PIPELINE, "compile_fx") is None:
            yield
            return

        def make_recording(apply: Any) -> Any:
            def apply_and_record(rewrite: Any, match: Any, graph: fx.Graph, node: fx.Node) -> None:
                if "sfdp" in rewrite_name(rewrite):
                    # torch would report an exception as its own.
                    with suppress(Exception):
                        self._found += [(found, self._inputs) for found in RewriteMatch.read(rewrite, match, graph)]
                apply(rewrite, match, graph, node)

            return apply_and_record

        def make_keeping(compile_fx: Any) -> Any:
            def compile_and_keep_inputs(graph: Any, inputs: Sequence[Any], *args: Any, **options: Any) -> Any:
                self._inputs = read_inputs(inputs)
                return compile_fx(graph, inputs, *args, **options)

            return compile_and_keep_inputs

        with wrap(*_APPLY, make_recording), wrap(_PIPELINE, "compile_fx", make_keeping):
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
        # While patterns are applied, a node may come after its users.
        node = next(node for node in waiting if all(source in copies for source in node.all_input_nodes))
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(owner, part)
