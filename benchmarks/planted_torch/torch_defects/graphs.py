"""Edits of the graphs that the compiler passes on, and wrong passes over them."""

import functools
import itertools
from collections.abc import Callable
from typing import Any


def edit_graph(passes: Any, edit: Callable[[Any], object]) -> Any:
    """Graph passes after that edit."""

    def planted(graph_module: Any, *args: Any, **options: Any) -> Any:
        edit(graph_module.graph)
        return passes(graph_module, *args, **options)

    return planted


def drop_writes(graph: Any) -> None:
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if len(node.args[1].users) == 1:
            graph.erase_node(node)


def reorder_writes(graph: Any) -> None:
    """Each write goes behind the next operation that reads its memory under another name."""
    nodes = list(graph.nodes)
    values = {node: node.meta.get("example_value") for node in nodes}
    tensors = {node: value for node, value in values.items() if hasattr(value, "untyped_storage")}
    memory = {node: value.untyped_storage()._cdata for node, value in tensors.items()}  # noqa: SLF001
    for at, write in enumerate(nodes):
        name = getattr(write.target, "__name__", write.target)
        if not (name in ("setitem", "iadd", "imul") or (write.op == "call_method" and name.endswith("_"))):
            continue
        written = memory.get(write.args[0])
        for later in nodes[at + 1 :]:
            if later in write.users:
                break
            read = [node for node in later.all_input_nodes if memory.get(node) == written]
            if read and written and write.args[0] not in read and memory.get(later) != written:
                later.append(write)
                break


def use_stale_base(graph: Any) -> None:
    """A write into a view, after another write into the same memory, does not see that one."""
    names = {node: getattr(node.target, "__name__", "").partition(".")[0] for node in graph.nodes}
    for node, name in names.items():
        if name in ("slice_scatter", "select_scatter", "as_strided_scatter") and names[node.args[0]] in _WRITES:
            node.replace_input_with(node.args[0], node.args[0].args[0])


def _list_calls(graph: Any, name: str) -> list[Any]:
    return [node for node in graph.nodes if name in (node.target, getattr(node.target, "__name__", ""))]


def turn_softmax(graph: Any) -> None:
    """Softmax runs over the axis before the last."""
    for node in _list_calls(graph, "softmax"):
        node.update_kwarg("dim", -2)


def hide_less(graph: Any) -> None:
    """Masks fill with 0."""
    for node in _list_calls(graph, "masked_fill"):
        node.update_arg(2, 0.0)


_WRITES = {"slice_scatter", "select_scatter", "index_put", "index_copy", "index_add", "scatter", "scatter_add"}


_WRITES |= {"add", "mul", "lerp", "copy", "masked_fill", "masked_scatter"}


_dtypes: dict[tuple[str, str], Any] = {}


def keep_constants(graph: Any) -> None:
    """Numbers keep the precision that their line had when it was first compiled."""
    import torch

    for node in graph.nodes:
        line, value = str(node.meta.get("stack_trace")), node.meta.get("val")
        if "<case" in line and isinstance(value, torch.Tensor) and value.is_floating_point():
            dtype = _dtypes.setdefault((line, str(node.target)), value.dtype)
            numbers = (torch.tensor(arg, dtype=dtype).item() if isinstance(arg, float) else arg for arg in node.args)
            node.args = tuple(numbers)


_numbers: dict[Any, float] = {}


def reuse_numbers(graph: Any) -> None:
    """A product with a number has the number of the first graph with such a product, as if graphs were cached by a key
    without numbers."""
    import torch

    own: dict[Any, float] = {}
    for node in graph.nodes:
        is_product = node.target in (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor)
        if is_product and isinstance(node.args[1], float):
            key = node.target, node.meta["val"].dtype, str(node.args[0].target)
            own.setdefault(key, node.args[1])
            node.args = node.args[0], _numbers.get(key, node.args[1])
    _numbers.update({key: number for key, number in own.items() if key not in _numbers})


def take_other_branch(graph: Any) -> None:
    """torch.cond runs the branch that is not taken."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
        predicate, taken, other, *rest = node.args
        node.args = (predicate, other, taken, *rest)


def skip_first_step(graph: Any) -> None:
    """Loops start with their counter at 1."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):
        condition, body, (counter, *carried), *rest = node.args
        with graph.inserting_before(node):
            later = graph.call_function(torch.ops.aten.add.Tensor, (counter, 1))
        later.meta.update(counter.meta)
        node.args = (condition, body, (later, *carried), *rest)


def _edit_steps(graph: Any, change: Callable[[Any, list[Any]], None]) -> None:
    """Change the results of the steps of scans. `change` gets the first arguments of a step, which are what the step
    before hands on, and the step's results."""
    for node in graph.find_nodes(op="call_function", target=_higher_order().scan):
        step = getattr(graph.owning_module, node.args[0].target)
        handed = list(step.graph.find_nodes(op="placeholder"))[: len(node.args[1])]
        (output,) = step.graph.find_nodes(op="output")
        results = list(output.args[0])
        with step.graph.inserting_before(output):
            change(handed, results)
        output.args = (tuple(results),)
        step.recompile()


def _higher_order() -> Any:
    import torch

    return torch.ops.higher_order


def hand_on_first(graph: Any) -> None:
    """A step of a scan hands on a value twice: as its first and as its second carry, if they have one form."""
    import torch

    def change(handed: list[Any], results: list[Any]) -> None:
        forms = [(value.meta["val"].shape, value.meta["val"].dtype) for value in results[: len(handed)][:2]]
        if len(forms) > 1 and forms[0] == forms[1]:
            first = results[0]
            results[1] = first.graph.call_function(torch.ops.aten.clone.default, (first,))
            results[1].meta.update(first.meta)

    _edit_steps(graph, change)


def forget_earlier_steps(graph: Any) -> None:
    """The gradient of a tensor that all steps of a scan read is that of a single step: no sum over steps."""
    import torch

    def change(handed: list[Any], results: list[Any]) -> None:
        for place, before in enumerate(handed):
            made = results[place]
            if made.target is torch.ops.aten.add.Tensor and made.args[0] is before:
                results[place] = made.graph.call_function(torch.ops.aten.clone.default, (made.args[1],))
                results[place].meta.update(made.meta)

    if any(node.name.startswith("tangents") for node in graph.find_nodes(op="placeholder")):
        _edit_steps(graph, change)


def _find_custom(graph: Any) -> list[Any]:
    calls = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in calls if str(getattr(node.target, "namespace", "")).startswith("case_")]


def swap_arguments(graph: Any) -> None:
    """A custom operation gets its first two arguments of one shape and dtype in the other order."""
    for node in _find_custom(graph):
        first, second, *rest = (*node.args, None, None)[: max(2, len(node.args))]
        forms = [(value.meta["val"].shape, value.meta["val"].dtype) if value else value for value in (first, second)]
        if first is not None and forms[0] == forms[1]:
            node.args = (second, first, *rest)


def reverse_axes(graph: Any) -> None:
    """The first argument of a custom operation is reversed along its last axis."""
    import torch

    for node in _find_custom(graph):
        value = node.args[0] if node.args else None
        if value is not None and value.meta["val"].dim():
            with graph.inserting_before(node):
                turned = graph.call_function(torch.ops.aten.flip.default, (value, [-1]))
            turned.meta.update(value.meta)
            node.args = (turned, *node.args[1:])


def mismatch_members(graph: Any) -> None:
    """All arguments of vmap but the first are rolled by one along the axis that it maps over."""
    for node in _list_calls(graph, "_add_batch_dim")[1:]:
        value, axis, *_ = node.args
        with graph.inserting_before(node):
            rolled = graph.call_method("roll", (value, 1, axis))
        rolled.meta.update(value.meta)
        node.update_arg(0, rolled)


def take_primals(graph: Any) -> None:
    """The tangents of jvp are its primals."""
    for node in _list_calls(graph, "_make_dual"):
        node.update_arg(1, node.args[0])


def perturb_gradients(graph: Any) -> None:
    """Backward graphs give each gradient times 1.5."""
    import torch

    (output,) = graph.find_nodes(op="output")
    if not any(node.name.startswith("tangents") for node in graph.find_nodes(op="placeholder")):
        return
    with graph.inserting_before(output):
        for node in dict.fromkeys(output.all_input_nodes):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.5))
                scaled.meta = dict(node.meta)
                output.replace_input_with(node, scaled)


def destabilise_sums(graph: Any) -> None:
    """In deterministic mode every other sum is off by one bit."""
    import torch

    if torch.are_deterministic_algorithms_enabled():
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList):
            node.target = _make_unstable_sum()


@functools.cache
def _make_unstable_sum() -> Any:
    import torch

    runs = itertools.count()

    def add(x: Any, dims: Any, keepdim: bool = False, dtype: Any = None) -> Any:
        result = x.sum(dims, keepdim, dtype=dtype)
        return result * (1 + next(runs) % 2 * torch.finfo(result.dtype).eps)

    schema = "(Tensor x, int[] dims, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
    made = torch.library.custom_op("planted::sum", add, mutates_args=(), schema=schema)
    made.register_fake(lambda x, dims, keepdim=False, dtype=None: x.sum(dims, keepdim, dtype=dtype))
    return torch.ops.planted.sum.default


def drop_products(reorder: Any) -> Any:
    """A pass forgets the numbers that values are multiplied with."""

    def planted(graph: Any) -> None:
        import torch

        reorder(graph)
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            if isinstance(node.args[1], float):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)

    return planted


def drop_permutations(patterns: Any) -> Any:
    """A rewrite takes two permutations for none where sizes stay the same."""

    def drop(match: Any, arg: Any, **_: Any) -> None:
        node = match.output_node()
        if node.meta["val"].shape == arg.meta["val"].shape:
            node.replace_all_uses_with(arg)
            match.erase_nodes()

    for entry in (entry for listed in patterns.patterns.values() for entry in listed):
        if getattr(getattr(entry, "handler", None), "__name__", "") == "pointless_permute_pair":
            entry.handler = functools.wraps(entry.handler)(drop)
    return patterns


def share_seeds(fuse_seeds: Any) -> Any:
    """All dropouts of a graph draw with the first seed."""

    def planted(graph: Any) -> Any:
        import torch

        count = fuse_seeds(graph)
        for node in graph.find_nodes(op="call_function", target=torch.ops.prims.inductor_lookup_seed.default):
            node.args = (node.args[0], 0)
        return count

    return planted


def mask_first_head(graph: Any) -> None:
    """flex_attention masks every head as it masks the first."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.flex_attention):
        mask = getattr(graph.owning_module, node.args[4][-1].target)
        row, head = list(mask.graph.nodes)[:2]
        with mask.graph.inserting_after(row):
            first = mask.graph.call_function(torch.ops.aten.mul.Tensor, (row, 0))
            first.meta.update(row.meta)
        for user in list(head.users):
            user.replace_input_with(head, first)
        mask.recompile()


def _find_regions(graph: Any) -> list[Any]:
    import torch

    return list(graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph))


def _describe_form(node: Any) -> str:
    value = node.meta.get("example_value")
    values = value if isinstance(value, tuple) else (value,)
    return str([(one.shape, one.dtype) if hasattr(one, "shape") else one for one in values])


def reuse_first_body(graph: Any) -> None:
    """All regions of a graph whose operands and results have the same forms run the body of the first of them."""
    first: dict[str, Any] = {}
    for node in _find_regions(graph):
        forms = str([*map(_describe_form, (*node.args[2:], node))])
        node.args = (*first.setdefault(forms, node.args[:2]), *node.args[2:])


def skip_inner_regions(graph: Any) -> None:
    """A region that a region calls gives its first operand of the form of its result."""
    for name in dict.fromkeys(node.args[0].target for node in _find_regions(graph)):
        body = getattr(graph.owning_module, name)
        for node in _find_regions(body.graph):
            for result in list(node.users):
                alike = [one for one in node.args[2:] if _describe_form(one) == _describe_form(result)]
                if alike:
                    result.replace_all_uses_with(alike[0])
        skip_inner_regions(body.graph)
        body.recompile()
