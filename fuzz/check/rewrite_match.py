"""What patterns of Inductor replace, and with what, as graphs that run again on the operands.

The only module that looks into a `ReplacementPatternEntry` and its match.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from fuzz.check.controls.pattern_constants import Unlike, differences, trace_pattern
from fuzz.check.coverage import rewrite_name
from fuzz.check.exceptions import SubjectError
from fuzz.check.oracle.verdict import order_dims
from fuzz.check.torch_internals import find, patch

_ENTRY = ("torch._inductor.pattern_matcher", "ReplacementPatternEntry")
_PIPELINE = "torch._inductor.compile_fx"


@dataclass(frozen=True)
class RewriteMatch:
    """One replacement of a pattern of attention. `operands`: tensors and numbers by the names of the pattern's
    arguments."""

    pattern: str
    operands: dict[str, Any]
    _found: "_Found"
    _free: tuple[Any, ...]

    def run_program(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """What the program computes with such operands, before the rewrite."""
        taken = [operands[name] for name in _first_names(self._found.operands).values()]
        return list(interpreter(self._found.program).run(*taken, *self._free))

    def run_replacement(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """The same after it."""
        result = interpreter(self._found.replacement).run(*operands.values())
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        return [outputs[index] for index in self._found.kept]

    def changes_strides(self) -> bool:
        """Whether the replacement lays an output out in another order of dimensions than the program."""
        return self._found.changes_strides()

    def run_pattern(self, operands: dict[str, Any], interpreter: type[fx.Interpreter]) -> list[Tensor]:
        """What the pattern computes, with its own constants. Raises `Unlike` or `SubjectError` where torch hides it."""
        outputs = interpreter(self._found.pattern).run(*operands.values())
        return [outputs[index] for index in self._found.kept] if isinstance(outputs, (tuple, list)) else [outputs]

    def read_constants(self) -> tuple[str, ...]:
        """The operations whose constants the program and the pattern do not share, each with the program's and the
        pattern's; none where they can't be compared."""
        return self._found.read_constants()


class MatchRecorder:
    """Keeps what patterns of attention replace while `watch` is entered, with the inputs of the graph they are in."""

    def __init__(self) -> None:
        self._found: list[_Found] = []
        self._inputs: list[Any] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While entered, replacements are kept. A torch that hides them is no error: there are none then."""
        entry = find(*_ENTRY)
        apply, compile_fx = getattr(entry, "apply", None), find(_PIPELINE, "compile_fx")
        if apply is None or compile_fx is None:
            yield
            return

        def apply_and_record(rewrite: Any, match: Any, graph: fx.Graph, node: fx.Node) -> None:
            if "sfdp" in rewrite_name(rewrite):
                self._found += _Found.read(rewrite, match, graph)
            apply(rewrite, match, graph, node)

        def compile_and_keep_inputs(graph: Any, inputs: Sequence[Any], *args: Any, **options: Any) -> Any:
            self._inputs = [_read_input(value) for value in inputs]
            return compile_fx(graph, inputs, *args, **options)

        with (
            patch(entry, "apply", apply_and_record),
            patch(importlib.import_module(_PIPELINE), "compile_fx", compile_and_keep_inputs),
        ):
            yield

    def matches(self) -> Iterator[RewriteMatch]:
        """Every replacement whose operands are known; tangents are drawn at random."""
        for found in self._found:
            match = found.with_inputs(self._inputs)
            if match is not None:
                yield match


@dataclass(frozen=True)
class _Found:
    """A match as it is met, copied out of its graph: `before` computes the operands that are nodes, and what else the
    `program` reads; `outputs` are the program's, None where nobody reads one, `kept` the places of the others."""

    rewrite: Any
    operands: dict[str, Any]
    before: fx.GraphModule
    program: fx.GraphModule
    outputs: list[fx.Node | None]
    replacement: fx.GraphModule
    kept: list[int]

    @classmethod
    def read(cls, rewrite: Any, match: Any, graph: fx.Graph) -> "list[_Found]":
        """The match; nothing where its replacement is no graph, or takes operands without names."""
        if not isinstance(match.replacement_graph, fx.GraphModule) or match.args:
            return []
        names = rewrite.normalize_args(**{name: name for name in match.kwargs})
        operands = {name: match.kwargs[name] for name in names}
        taken = list(_first_names(operands))
        inside = set(match.nodes)
        read = dict.fromkeys(source for node in graph.nodes if node in inside for source in node.all_input_nodes)
        free = [node for node in read if node not in inside and node not in taken]
        outputs = match.output_nodes()
        kept = [index for index, node in enumerate(outputs) if node is not None]
        owner = graph.owning_module or nn.Module()
        before, _ = _copy_part(owner, graph, None, [*taken, *free])
        program, copies = _copy_part(owner, graph, [*taken, *free], [outputs[index] for index in kept])
        return [
            cls(
                rewrite,
                {
                    name: copies.get(value, value) if isinstance(value, fx.Node) else value
                    for name, value in operands.items()
                },
                before,
                program,
                [copies.get(node) for node in outputs],
                match.replacement_graph,
                kept,
            )
        ]

    def with_inputs(self, inputs: list[Any]) -> RewriteMatch | None:
        """The match with the values of its operands; None where the inputs are not those of its graph."""
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
        except (RuntimeError, TypeError):  # a size that the graph knows as a symbol alone
            return None
        names = _first_names(self.operands)
        known = dict(zip(names, values, strict=False))
        operands = {
            name: known[value] if isinstance(value, fx.Node) else value for name, value in self.operands.items()
        }
        return RewriteMatch(rewrite_name(self.rewrite), operands, self, tuple(values[len(names) :]))

    def changes_strides(self) -> bool:
        """See `RewriteMatch`."""
        returned = next(node for node in reversed(self.replacement.graph.nodes) if node.op == "output").args[0]
        after = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        for index in self.kept:
            mine, theirs = (getattr(node, "meta", {}).get("val") for node in (self.outputs[index], after[index]))
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and order_dims(mine) != order_dims(theirs):
                return True
        return False

    @cached_property
    def pattern(self) -> fx.GraphModule:
        """The pattern for such operands, with its own constants. Raises `Unlike` or `SubjectError`."""
        return trace_pattern(self.rewrite, self.operands)

    def read_constants(self) -> tuple[str, ...]:
        """See `RewriteMatch`."""
        try:
            found = differences(self.rewrite, self.operands, self.outputs)
        except (Unlike, SubjectError):
            return ()
        return tuple(sorted({f"{operation} {program} for {expected}" for operation, program, expected in found}))


def _read_input(value: Any) -> Any:
    """A graph's input without its gradient; of a symbolic size the number behind it."""
    if isinstance(value, torch.SymInt):
        return value.node.hint
    return value.detach() if isinstance(value, Tensor) else value


def _first_names(operands: dict[str, Any]) -> dict[fx.Node, str]:
    """The operands that are nodes, each with a name of its own: query and key may be one node."""
    return {value: name for name, value in reversed(operands.items()) if isinstance(value, fx.Node)}


def _copy_part(
    owner: nn.Module, graph: fx.Graph, inputs: list[fx.Node] | None, outputs: list[fx.Node]
) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """The part of a graph that computes `outputs` from `inputs`, or without them from its own placeholders; and the
    copies of its nodes."""
    part, copies = fx.Graph(), {}
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
        # While patterns are applied a node may stand behind one that reads it.
        node = next(node for node in waiting if all(source in copies for source in node.all_input_nodes))
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(owner, part), copies
