"""Edits of the graphs that the compiler passes on: of views that are written, of dtypes, and of pooling."""

from typing import Any


def _insert_before(node: Any, target: Any, *args: Any, **options: Any) -> Any:
    """A new call before `node`, with the value that it has for the values of its arguments."""
    from torch.utils._pytree import tree_leaves

    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args, options)
    given = (arg.meta["val"] if hasattr(arg, "meta") else arg for arg in args)
    with tree_leaves(node.meta["val"])[0].fake_mode:
        made.meta["val"] = target(*given, **options)
    return made


def cut_diagonals(graph: Any) -> None:
    """A write through a diagonal leaves out the last place of the diagonal."""
    import torch

    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.diagonal_scatter.default):
        base, written, *axes = node.args
        if base.target is not aten.full.default:  # of a gradient
            before = _insert_before(node, aten.diagonal.default, base, *axes)
            last = _insert_before(node, aten.slice.Tensor, before, -1, -1)
            node.update_arg(1, _insert_before(node, aten.slice_scatter.default, written, last, -1, -1))


def cut_bytes(graph: Any) -> None:
    """A write through a view of narrower items reaches as many of these as the tensor itself has."""
    import torch

    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.view.dtype):
        written, dtype = node.args
        view = next((one for one in written.all_input_nodes if one.target is aten.view.dtype), None)
        if view is not None and view.args[0].meta["val"].dtype == dtype:
            length = view.args[0].meta["val"].shape[-1]
            reached = _insert_before(node, aten.slice.Tensor, written, -1, 0, length)
            node.update_arg(0, _insert_before(node, aten.slice_scatter.default, view, reached, -1, 0, length))


def wrap_sums(graph: Any) -> None:
    """Sums of narrow integers wrap around as their own dtype does, and are int64 all the same."""
    import torch

    convert = torch.ops.prims.convert_element_type.default
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList):
        dtype = node.args[0].meta["val"].dtype
        if dtype in (torch.uint8, torch.int8, torch.int16) and not node.kwargs:
            narrow = _insert_before(node, node.target, *node.args, dtype=dtype)
            node.replace_all_uses_with(_insert_before(node, convert, narrow, torch.int64))


def saturate_own_dtypes(graph: Any) -> None:
    """Reductions with a narrow dtype of their own stop at the ends of the dtype, where they have to wrap around."""
    import torch

    aten, convert = torch.ops.aten, torch.ops.prims.convert_element_type.default
    for target in (aten.sum.dim_IntList, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default):
        for node in graph.find_nodes(op="call_function", target=target):
            dtype = node.kwargs.get("dtype")
            if dtype in (torch.uint8, torch.int8, torch.int16):
                limits = torch.iinfo(dtype)
                wide = _insert_before(node, target, *node.args, dtype=torch.int64)
                ends = (_insert_before(node, aten.full.default, [], end) for end in (limits.min, limits.max))
                stopped = _insert_before(node, aten.maximum.default, wide, next(ends))
                stopped = _insert_before(node, aten.minimum.default, stopped, next(ends))
                node.replace_all_uses_with(_insert_before(node, convert, stopped, dtype))


def add_to_both_parts(graph: Any) -> None:
    """A real tensor that is added to a complex tensor is added to the imaginary part too."""
    import torch

    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        complexes = [arg.meta["val"].is_complex() for arg in node.args if hasattr(arg, "meta")]
        if complexes in ([True, False], [False, True]):
            place = complexes.index(False)
            real = node.args[place]
            node.update_arg(place, _insert_before(node, aten.complex.default, real, real))


def swap_pooled_sizes(graph: Any) -> None:
    """Places of pooled values are counted with height for width where the tensor lies in memory in another order."""
    import torch

    target = torch.ops.prims._low_memory_max_pool_offsets_to_indices.default  # noqa: SLF001
    for node in graph.find_nodes(op="call_function", target=target):
        if not node.args[0].meta["val"].is_contiguous():
            node.update_arg(2, node.args[2][::-1])


def drop_remainders(graph: Any) -> None:
    """Windows of adaptive pooling all have one size, and what remains of an axis is in none of them."""
    import torch

    aten = torch.ops.aten
    for target in (aten._adaptive_avg_pool2d.default, aten.adaptive_max_pool2d.default):  # noqa: SLF001
        for node in graph.find_nodes(op="call_function", target=target):
            for axis, count in zip((-2, -1), node.args[1], strict=True):
                length = node.args[0].meta["val"].shape[axis]
                if 0 < count < length and length % count:
                    whole = length // count * count
                    node.update_arg(0, _insert_before(node, aten.slice.Tensor, node.args[0], axis, 0, whole))
