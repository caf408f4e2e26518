"""Which kernel writes something else than its operations give: generated code beside the graph that it is made from.

Inductor's Python wrapper calls kernels, C++ or Triton or of a library, one statement each, and keeps what they write in
local variables. After each statement, what it has written is compared with the graph's operations in float64, on what
the kernel read: a mistake is that of the kernel that makes it.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, fx

from fuzz.check.exact_graph import Exact, in_float64, is_random, measure_difference, name_operation, widen
from fuzz.check.oracle.constants import UNIT_ROUNDOFF
from fuzz.check.torch_internals import wrap
from fuzz.protocol.controls import KernelDiffers, NotMeasured, Observation

_GRAPH = "torch._inductor.graph"
_EAGER_FACTOR, _ROUNDOFFS = 16.0, 64.0
"""A kernel is wrong whose error is larger than so many times eager's and so many units of its dtype together."""
_SILENT = frozenset({"assert_size_stride", "assert_alignment", "reinterpret_tensor", "alias", "device_guard"})
_STATEMENTS = (ast.Expr, ast.Assign, ast.Return)
Record = Callable[[Observation], None]


@contextmanager
def compare_kernels(record: Record) -> Iterator[None]:
    """While entered, programs run with their kernels compared; the first that is wrong is recorded. Raises
    `SubjectError` where this torch does not say what becomes of a graph."""
    seen: list[KernelDiffers] = []
    compared: list[int] = []

    def make(compile_to_module: Any) -> Any:
        def compile_and_wrap(lowering: Any, *args: Any, **options: Any) -> Any:
            module = compile_to_module(lowering, *args, **options)
            file = getattr(module, "__file__", None)
            if file and hasattr(module, "call"):
                module.call = _Compared(lowering, module.call, file, seen, compared)
            return module

        return compile_and_wrap

    with wrap(_GRAPH, "GraphLowering.compile_to_module", make):
        yield
    if seen:
        record(seen[0])
    elif not compared:
        record(NotMeasured("kernels", "no kernel of the generated code could be compared"))


class _Compared:
    """The wrapper of a graph, with its kernels compared."""

    def __init__(
        self, lowering: Any, call: Callable[[list[Any]], Any], file: str, seen: list[KernelDiffers], compared: list[int]
    ) -> None:
        self._call, self._file, self._seen, self._compared = call, file, seen, compared
        self._graph: fx.GraphModule = lowering.module
        self._nodes = {name: _find_node(buffer) for name, buffer in lowering.name_to_buffer.items()}
        self._statements = _read_statements(file)

    def __call__(self, inputs: list[Any]) -> Any:
        holes = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        values = _Values(self._graph, dict(zip(holes, map(_copy, inputs), strict=True)))
        met: set[str] = set()
        last = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal last
            if frame.f_code.co_filename != self._file:
                return None
            if event in ("line", "return"):
                for name in self._statements.get(last, ("", ()))[1]:
                    node = self._nodes.get(name)
                    value = frame.f_locals.get(name)
                    if name not in met and node is not None and isinstance(value, Tensor):
                        met.add(name)
                        self._compare(self._statements[last][0], node, value, values)
                last = frame.f_lineno
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return self._call(inputs)
        finally:
            sys.settrace(before)

    def _compare(self, kernel: str, node: fx.Node, value: Tensor, values: "_Values") -> None:
        before = sys.gettrace()
        sys.settrace(None)
        try:
            operations = values.list_fused(node)
            found = values.compute(node)
            values.keep(node, value)
            if found is None or self._seen or found[0].shape != value.shape:
                return
            exact, eager = found
            self._compared.append(1)
            unit = UNIT_ROUNDOFF.get(value.dtype, 0.0)
            error, own = (measure_difference(exact, other) or 0.0 for other in (value, eager))
            limit = _EAGER_FACTOR * own + _ROUNDOFFS * unit
            if error > limit:
                known = exact.isfinite()
                size = float(exact[known].abs().max())
                wrong = known & ~((exact - value).abs() <= limit * size)
                self._seen.append(
                    KernelDiffers(kernel, operations, node.name, int(wrong.sum()), value.numel(), error, own)
                )
        finally:
            sys.settrace(before)


class _Values:
    """What the nodes of a graph are: those in memory as they were written, the others computed from them."""

    def __init__(self, graph: fx.GraphModule, known: dict[fx.Node, Any]) -> None:
        self._graph, self._known = graph, known

    def keep(self, node: fx.Node, value: Tensor) -> None:
        """A value as a kernel wrote it."""
        self._known[node] = _copy(value)

    def compute(self, node: fx.Node) -> tuple[Tensor, Tensor] | None:
        """A node in float64 and as eager rounds it; None where that can't be known."""
        needed = self._list_needed(node)
        if any(is_random(one) for one in needed):
            return None
        try:
            rounded = self._run(fx.Interpreter, needed, _copy)[node]
            with in_float64():
                exact = self._run(Exact, needed, widen)[node]
        except Exception:
            # A size that the graph knows as a symbol alone, or an operation that float64 lacks.
            return None
        return (exact, rounded) if isinstance(exact, Tensor) and isinstance(rounded, Tensor) else None

    def list_fused(self, node: fx.Node) -> tuple[str, ...]:
        """The operations between a node and what is in memory, without views."""
        called = [one for one in self._list_needed(node) if one.op == "call_function"]
        own = [one for one in called if not getattr(one.target, "is_view", False)]
        return tuple(map(name_operation, own or called))

    def _list_needed(self, node: fx.Node) -> list[fx.Node]:
        needed, queue = {node}, [node]
        while queue:
            for source in queue.pop().all_input_nodes:
                if source not in self._known and source not in needed:
                    needed.add(source)
                    queue.append(source)
        return [one for one in self._graph.graph.nodes if one in needed]

    def _run(self, kind: type[fx.Interpreter], needed: list[fx.Node], read: Callable[[Any], Any]) -> dict[fx.Node, Any]:
        interpreter = kind(self._graph, garbage_collect_values=False)
        wanted = {source for one in needed for source in one.all_input_nodes}
        interpreter.env = {node: read(value) for node, value in self._known.items() if node in wanted}
        for one in needed:
            interpreter.env[one] = interpreter.run_node(one)
        return interpreter.env


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _find_node(buffer: Any) -> fx.Node | None:
    find = getattr(buffer, "get_origin_node", None)
    node = find() if find is not None else None
    return node if isinstance(node, fx.Node) else None


def _read_statements(file: str) -> dict[int, tuple[str, tuple[str, ...]]]:
    """By their first line, statements that call something: what, and those variables that it gets, or that get its
    result, which are read afterwards: what a kernel has no more use for it may overwrite."""
    found: dict[int, tuple[str, tuple[str, ...]]] = {}
    parts = [part for part in ast.walk(ast.parse(Path(file).read_text())) if isinstance(part, _STATEMENTS)]
    read: set[str] = set()
    for part in sorted(parts, key=lambda part: -part.lineno):
        named = [one for one in ast.walk(part) if isinstance(one, ast.Name)]
        called = next((one for one in ast.walk(part) if isinstance(one, ast.Call)), None)
        name = ast.unparse(called.func) if called is not None else ""
        is_kernel = not (name.rpartition(".")[2] in _SILENT or "empty_strided" in name)
        if is_kernel and not isinstance(part, ast.Return) and isinstance(part.value, (ast.Call, ast.Subscript)):
            found[part.lineno] = name, tuple(dict.fromkeys(one.id for one in named if one.id in read))
        if not name.startswith("assert_"):
            read.update(one.id for one in named if isinstance(one.ctx, ast.Load))
    return found
