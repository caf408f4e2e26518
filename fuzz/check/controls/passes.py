"""Which pass changes what a graph computes: the graph after each pass and rewrite, in float64 on the case's operands.

A pass is what torch runs within a `GraphTransformObserver`, or between two. Values are found by the names of nodes,
which passes keep. Graphs that draw random numbers can't be compared.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from fuzz.check.coverage import REWRITES, rewrite_name
from fuzz.check.exact_graph import (
    NotComparable,
    copy_graph,
    evaluate,
    in_float64,
    measure_difference,
    name_operation,
    read_inputs,
    read_outputs,
    tolerance_of,
    widen,
)
from fuzz.check.oracle.operations import OperationMode
from fuzz.check.torch_internals import require, wrap
from fuzz.protocol.controls import DecompositionDiffers, NotMeasured, Observation, PassDiffers

PIPELINE, OBSERVER = "torch._inductor.compile_fx", "torch.fx.passes.graph_transform_observer"
_STAGES = {f"_recursive_{name}_passes": f"{name}_passes" for name in ("pre_grad", "joint_graph", "post_grad")}
_BETWEEN = "code between passes"
Record = Callable[[Observation], None]


@dataclass(frozen=True)
class _Snapshot:
    """A graph after a pass: of which group, by which pass and rewrite; `inputs`: those of the program, in order."""

    stage: str
    name: str
    rewrite: str
    graph: fx.GraphModule
    inputs: list[Any]
    text: str


@contextmanager
def compare_passes(record: Record) -> Iterator[None]:
    """While entered, graphs are kept after each pass; then the first that computes something else is recorded."""
    recorder = _PassRecorder()
    with recorder.watch():
        yield
    try:
        found = recorder.find_difference()
    except NotComparable as reason:
        record(NotMeasured("passes", str(reason)))
    else:
        if found is not None:
            record(found)


class _PassRecorder:
    def __init__(self) -> None:
        self._snapshots: list[_Snapshot] = []
        self._inputs: list[Any] = []
        self._stage = ""
        self._module: fx.GraphModule | None = None
        self._names: list[str] = []
        self._rewrite = ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(wrap(PIPELINE, "compile_fx", self._keep_inputs))
            for function, stage in _STAGES.items():
                stack.enter_context(wrap(PIPELINE, function, partial(self._enter, stage=stage)))
            stack.enter_context(wrap(OBSERVER, "GraphTransformObserver.__enter__", self._begin_pass))
            stack.enter_context(wrap(OBSERVER, "GraphTransformObserver.__exit__", self._end_pass))
            for place in REWRITES:
                stack.enter_context(wrap(*place, self._apply))
            yield

    def _keep_inputs(self, compile_fx: Any) -> Any:
        def compile_and_keep(graph: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            self._inputs = read_inputs(inputs)
            return compile_fx(graph, inputs, *args, **options)

        return compile_and_keep

    def _enter(self, run: Any, stage: str) -> Any:
        def run_and_keep(graph: Any, *args: Any, **options: Any) -> Any:
            if self._module is not None:  # a graph within the one around it
                return run(graph, *args, **options)
            self._module, self._stage = graph, stage
            try:
                self._keep("")
                result = run(graph, *args, **options)
                self._module = result if isinstance(result, fx.GraphModule) else graph
                self._keep(_BETWEEN)
            finally:
                self._module = None
            return result

        return run_and_keep

    def _begin_pass(self, enter: Any) -> Any:
        def enter_and_keep(observer: Any) -> Any:
            self._keep(self._names[-1] if self._names else _BETWEEN)
            self._names.append(observer.passname)
            return enter(observer)

        return enter_and_keep

    def _end_pass(self, leave: Any) -> Any:
        def keep_and_leave(observer: Any, *error: Any) -> Any:
            self._keep(self._names[-1])
            self._names.pop()
            return leave(observer, *error)

        return keep_and_leave

    def _apply(self, apply: Any) -> Any:
        def apply_and_keep(entry: Any, *args: Any, **options: Any) -> Any:
            result = apply(entry, *args, **options)
            self._keep(self._names[-1] if self._names else _BETWEEN, rewrite_name(entry))
            return result

        return apply_and_keep

    def _keep(self, name: str, rewrite: str = "") -> None:
        if self._module is None:
            return
        text = str(self._module.graph)
        last = self._snapshots[-1] if self._snapshots else None
        if not name or last is None or last.text != text:
            graph = copy_graph(self._module.graph)
            self._snapshots.append(_Snapshot(self._stage, name, rewrite, graph, self._inputs, text))

    def find_difference(self) -> PassDiffers | None:
        """The first. Raises `NotComparable` where none is found and some graph could not be compared."""
        groups: list[list[_Snapshot]] = []
        for snapshot in self._snapshots:
            if snapshot.name:
                groups[-1].append(snapshot)
            else:
                groups.append([snapshot])
        joints: list[dict[str, Any]] = []
        reason = None
        for group in groups:
            try:
                operands = _find_operands(group[0], joints)
                last = None
                for snapshot in group:
                    values = evaluate(snapshot.graph, operands)
                    if last is not None and (found := _compare(*last, snapshot, values, operands)):
                        return found
                    last = snapshot, values
                if last is not None and group[0].stage == "joint_graph_passes":
                    joints.append({**operands, **last[1]})
            except NotComparable as error:
                reason = error
        if reason is not None:
            raise reason
        return None


def _find_operands(first: _Snapshot, joints: list[dict[str, Any]]) -> dict[str, Any]:
    """Operands by the names of placeholders: inputs of the program, and what its joint graph computes. Tangents are
    drawn at random."""
    holes = [node for node in first.graph.graph.nodes if node.op == "placeholder"]
    if first.stage == "post_grad_passes":
        for joint in reversed(joints):
            if all(hole.name in joint and _fits(hole, joint[hole.name]) for hole in holes):
                return {hole.name: joint[hole.name] for hole in holes}
        raise NotComparable("the graph has inputs that its joint graph lacks")
    generator, inputs = torch.Generator().manual_seed(0), iter(first.inputs)
    operands: dict[str, Any] = {}
    for hole in holes:
        like = hole.meta.get("val", hole.meta.get("example_value"))
        if str(hole.target).startswith("tangents") and isinstance(like, Tensor):
            drawn = torch.randn([int(size) for size in like.shape], generator=generator, dtype=torch.float64)
            operands[hole.name] = drawn.to(like.device, like.dtype)
            continue
        operands[hole.name] = next(inputs, None)
        if not _fits(hole, operands[hole.name]):
            raise NotComparable("the inputs of the graph are not those of the program")
    return operands


def _fits(hole: fx.Node, value: Any) -> bool:
    like = hole.meta.get("val", hole.meta.get("example_value"))
    return not isinstance(like, Tensor) or (isinstance(value, Tensor) and value.dim() == like.dim())


def _compare(
    before: _Snapshot, values: dict[str, Any], after: _Snapshot, now: dict[str, Any], operands: dict[str, Any]
) -> PassDiffers | None:
    """How what the graph gives changed, if it did."""
    limit = tolerance_of(operands.values())

    def differ(mine: Any, theirs: Any) -> float:
        error = measure_difference(mine, theirs) if isinstance(mine, Tensor) and isinstance(theirs, Tensor) else None
        return error if error is not None and error > limit else 0.0

    given = [read_outputs(snapshot.graph) for snapshot in (before, after)]
    errors = [
        differ(values.get(mine.name), now.get(theirs.name))
        for mine, theirs in zip(*given, strict=False)
        if isinstance(mine, fx.Node) and isinstance(theirs, fx.Node)
    ]
    if not any(errors):
        return None
    known, left = ({node.name: node for node in one.graph.graph.nodes} for one in (before, after))
    changed = next((name for name in left if name in known and differ(values[name], now[name])), "")
    old, new = known.get(changed), left.get(changed)
    if old is None or new is None:  # nothing after it has the value
        index = next(index for index, error in enumerate(errors) if error)
        old, new = (outputs[index] for outputs in given)
    return PassDiffers(
        stage=after.stage,
        name=after.name,
        rewrite=after.rewrite,
        node=old.name,
        operation=name_operation(old),
        removed=_list_operations(old, left),
        added=_list_operations(new, known),
        error=max(errors),
        line=read_line(old),
    )


def _list_operations(node: fx.Node, others: Any) -> tuple[str, ...]:
    """The operations that compute a node from nodes that the other graph has too, the last first."""
    found, queue = dict.fromkeys([] if node.name in others else [node]), list(node.all_input_nodes)
    while queue:
        source = queue.pop(0)
        if source.name not in others and source not in found:
            found[source] = None
            queue += source.all_input_nodes
    return tuple(dict.fromkeys(map(name_operation, found)))


def read_line(node: fx.Node) -> str:
    """The line of the program that a node comes from; "" where torch does not say."""
    trace = str(node.meta.get("stack_trace") or "").strip()
    return trace.rpartition("\n")[2].strip() if trace else ""


@contextmanager
def compare_decompositions(record: Record) -> Iterator[None]:
    """While entered, each operation that Inductor decomposes is compared with its decomposition in float64; the first
    that differs is recorded. For eager runs. Raises `SubjectError`."""
    table = require("torch._inductor.decomposition", "select_decomp_table")()
    mode = _Decompositions(table)
    with mode:
        yield
    if mode.found is not None:
        record(mode.found)


class _Decompositions(OperationMode):
    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__()
        self._table = table
        self.found: DecompositionDiffers | None = None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func`; see the class."""
        if (
            func in self._table
            and self.found is None
            and not (func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags)
        ):
            given = tree_map(widen, (args, kwargs))
            # Some are called with what others of their kind refuse.
            with suppress(Exception), in_float64():
                pairs = zip(
                    tree_leaves(func(*given[0], **given[1])),
                    tree_leaves(self._table[func](*given[0], **given[1])),
                    strict=False,
                )
                errors = [
                    measure_difference(mine, theirs)
                    for mine, theirs in pairs
                    if isinstance(mine, Tensor) and isinstance(theirs, Tensor)
                ]
                error = max((error for error in errors if error is not None), default=0.0)
                if error > tolerance_of(tree_leaves((args, kwargs))):
                    self.found = DecompositionDiffers(str(func.overloadpacket), error)
        return func(*args, **kwargs)
