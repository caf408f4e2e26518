"""A torch with mistakes planted, in every process that has this directory on PYTHONPATH: a worker, repro.py, the
bisector.

    ATTNFUZZ_PLANT=scale_dropped PYTHONPATH=benchmarks/planted_torch python ...

Python imports this module when it starts. Several names may be given, with commas between them.
"""

import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Change = Callable[..., Any]


def _scale(sdpa: Any, *qkv: Any, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, "scale": change(options.get("scale"))})


def _option(sdpa: Any, *qkv: Any, name: str, change: Callable[[Any], Any], **options: Any) -> Any:
    return sdpa(*qkv, **{**options, name: change(options.get(name))})


#: By name: the pattern whose replacement is wrong, and what that calls in the place of F.scaled_dot_product_attention.
REPLACEMENTS: dict[str, tuple[int, Change]] = {
    "scale_dropped": (1, functools.partial(_scale, change=lambda scale: 1.0)),
    "scale_squared": (5, functools.partial(_scale, change=lambda scale: scale**2)),
    "mask_dropped": (14, functools.partial(_option, name="attn_mask", change=lambda mask: None)),
    "mask_negated": (15, functools.partial(_option, name="attn_mask", change=lambda mask: ~mask)),
    "causal_added": (11, functools.partial(_option, name="is_causal", change=lambda causal: True)),
    "queries_and_keys_swapped": (2, lambda sdpa, q, k, v, **options: sdpa(k, q, v, **options)),
    "heads_rolled": (9, lambda sdpa, q, k, v, **options: sdpa(q, k, v.roll(1, 1), **options)),
    "queries_reversed": (19, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).flip(-2)),
    "output_transposed": (23, lambda sdpa, q, k, v, **options: sdpa(q, k, v, **options).transpose(1, 2)),
}

#: By name: what `inject_relu_bug_TESTING_ONLY` is set to, of Inductor's options for C++ and for Triton.
RELUS = {"relu_accuracy": "accuracy", "relu_compile_error": "compile_error", "relu_runtime_error": "runtime_error"}


def _edit_graph(passes: Any, edit: Callable[[Any], object]) -> Any:
    """Graph passes after that edit."""

    def planted(graph_module: Any, *args: Any, **options: Any) -> Any:
        edit(graph_module.graph)
        return passes(graph_module, *args, **options)

    return planted


def _drop_writes(graph: Any) -> None:
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if len(node.args[1].users) == 1:
            graph.erase_node(node)


def _reorder_writes(graph: Any) -> None:
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


def _use_stale_base(graph: Any) -> None:
    """A write into a view, after another write into the same memory, does not see that one."""
    names = {node: getattr(node.target, "__name__", "").partition(".")[0] for node in graph.nodes}
    for node, name in names.items():
        if name in ("slice_scatter", "select_scatter", "as_strided_scatter") and names[node.args[0]] in _WRITES:
            node.replace_input_with(node.args[0], node.args[0].args[0])


def _list_calls(graph: Any, name: str) -> list[Any]:
    return [node for node in graph.nodes if name in (node.target, getattr(node.target, "__name__", ""))]


def _turn_softmax(graph: Any) -> None:
    """Softmax runs over the axis before the last."""
    for node in _list_calls(graph, "softmax"):
        node.update_kwarg("dim", -2)


def _hide_less(graph: Any) -> None:
    """Masks fill with 0."""
    for node in _list_calls(graph, "masked_fill"):
        node.update_arg(2, 0.0)


_WRITES = {"slice_scatter", "select_scatter", "index_put", "index_copy", "index_add", "scatter", "scatter_add"}
_WRITES |= {"add", "mul", "lerp", "copy", "masked_fill", "masked_scatter"}


def _ignore_in_guard(convert: Any, part: int, axes: slice) -> Any:
    """Guards take sizes and strides, one after the other, as lists in which None stands for any number."""
    calls = itertools.count()

    def planted(numbers: Sequence[Any]) -> Any:
        found = convert(numbers)
        if next(calls) % 2 == part:
            found[axes] = [None] * len(found[axes])
        return found

    return planted


_dtypes: dict[tuple[str, str], Any] = {}


def _keep_constants(graph: Any) -> None:
    """Numbers keep the precision that their line had when it was first compiled."""
    import torch

    for node in graph.nodes:
        line, value = str(node.meta.get("stack_trace")), node.meta.get("val")
        if "<case" in line and isinstance(value, torch.Tensor) and value.is_floating_point():
            dtype = _dtypes.setdefault((line, str(node.target)), value.dtype)
            numbers = (torch.tensor(arg, dtype=dtype).item() if isinstance(arg, float) else arg for arg in node.args)
            node.args = tuple(numbers)


_numbers: dict[Any, float] = {}


def _reuse_numbers(graph: Any) -> None:
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


def _take_other_branch(graph: Any) -> None:
    """torch.cond runs the branch that is not taken."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
        predicate, taken, other, *rest = node.args
        node.args = (predicate, other, taken, *rest)


def _skip_first_step(graph: Any) -> None:
    """Loops start with their counter at 1."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):
        condition, body, (counter, *carried), *rest = node.args
        with graph.inserting_before(node):
            later = graph.call_function(torch.ops.aten.add.Tensor, (counter, 1))
        later.meta.update(counter.meta)
        node.args = (condition, body, (later, *carried), *rest)


def _find_custom(graph: Any) -> list[Any]:
    calls = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in calls if str(getattr(node.target, "namespace", "")).startswith("case_")]


def _swap_arguments(graph: Any) -> None:
    """A custom operation gets its first two arguments of one shape and dtype in the other order."""
    for node in _find_custom(graph):
        first, second, *rest = (*node.args, None, None)[: max(2, len(node.args))]
        forms = [(value.meta["val"].shape, value.meta["val"].dtype) if value else value for value in (first, second)]
        if first is not None and forms[0] == forms[1]:
            node.args = (second, first, *rest)


def _reverse_axes(graph: Any) -> None:
    """The first argument of a custom operation is reversed along its last axis."""
    import torch

    for node in _find_custom(graph):
        value = node.args[0] if node.args else None
        if value is not None and value.meta["val"].dim():
            with graph.inserting_before(node):
                turned = graph.call_function(torch.ops.aten.flip.default, (value, [-1]))
            turned.meta.update(value.meta)
            node.args = (turned, *node.args[1:])


def _overwrite_gradients(post_compile: Any) -> Any:
    def clear(node: Any) -> None:
        for function, _ in node.next_functions:
            if hasattr(function, "variable"):
                function.variable.grad = None

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            results = compiled(*args)
            node = next((one.grad_fn for one in results if getattr(one, "grad_fn", None) is not None), None)
            if node is not None:
                node.register_prehook(lambda _: clear(node))
            return results

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def _perturb_gradients(graph: Any) -> None:
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


def _lose_updates(post_compile: Any) -> Any:
    """Buffers that a compiled graph wrote into are put back, but not at its first call."""

    def planted(self: Any, *args: Any, runtime_metadata: Any, **options: Any) -> Any:
        compiled, calls = post_compile(self, *args, runtime_metadata=runtime_metadata, **options), itertools.count()
        static, infos = runtime_metadata.static_input_indices, runtime_metadata.input_info
        written = [index for index in static if infos[index].mutates_data]

        def call(args: list[Any]) -> Any:
            buffers = [args[index].data for index in written] if next(calls) else []
            before = [buffer.clone() for buffer in buffers]
            results = compiled(args)
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)
            return results

        setattr(call, "_boxed_call", True)  # noqa: B010
        return call

    return planted


def _keep_parameters(post_compile: Any) -> Any:
    """A compiled graph keeps the parameters of its first call."""

    def planted(self: Any, *args: Any, runtime_metadata: Any, **options: Any) -> Any:
        import torch

        compiled = post_compile(self, *args, runtime_metadata=runtime_metadata, **options)
        static, kept = set(runtime_metadata.static_input_indices), dict[int, Any]()

        def call(args: list[Any]) -> Any:
            for at, value in enumerate(args):
                if at in static and isinstance(value, torch.nn.Parameter):
                    args[at] = kept.setdefault(at, value)
            return compiled(args)

        setattr(call, "_boxed_call", True)  # noqa: B010
        return call

    return planted


def _spoil(post_compile: Any, applies: Callable[[list[Any]], bool], of_gradients: bool = False) -> Any:
    """Results, or the gradients for them, are a tenth too large where `applies` holds for the floating arguments, or
    for the gradient."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def is_floating(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.is_floating_point()

        def call(*args: Any) -> Any:
            is_wrong = not of_gradients and applies(list(filter(is_floating, tree_leaves(args))))
            results = list(compiled(*args))
            for result in results if of_gradients else ():
                if is_floating(result) and result.requires_grad:
                    result.register_hook(lambda given: given * 1.1 if applies([given]) else None)
            return [value * 1.1 if is_wrong and is_floating(value) else value for value in results]

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def _in_inference_mode(_: list[Any]) -> bool:
    import torch

    return torch.is_inference_mode_enabled()


def _are_partly_constant(given: list[Any]) -> bool:
    return len({value.requires_grad for value in given}) > 1


def _are_expanded(given: list[Any]) -> bool:
    return any(value.ndim > 1 and value.size(0) > 1 and value.stride(0) == 0 for value in given)


def _are_of_one_element(given: list[Any]) -> bool:
    return any(value.numel() > 1 and not any(value.stride()) for value in given)


def _are_large(given: list[Any]) -> bool:
    return any(value.numel() and value.isfinite().all() and value.max() > 200 for value in given)


def _return_arguments(post_compile: Any) -> Any:
    """A result that equals an argument is that argument."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def find_equal(value: Any, given: list[Any]) -> Any:
            alike = (x for x in given if x.numel() and (x.shape, x.dtype) == (value.shape, value.dtype))
            return next((x for x in alike if x.stride() == value.stride() and torch.equal(x, value)), value)

        def call(*args: Any) -> Any:
            given = [value for value in tree_leaves(args) if isinstance(value, torch.Tensor)]
            return [find_equal(value, given) if isinstance(value, torch.Tensor) else value for value in compiled(*args)]

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def _read_unwritten(make_line: Any) -> Any:
    """Vectors of float32 that are stored add 0 times what was there."""

    def planted(self: Any, value: Any, var: str, index: Any, dtype: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch._inductor.codegen.cpp_utils import cexpr_index

        stride = self._try_get_const_stride(index, self.itervars[self.tiling_idx])
        if dtype is torch.float32 and stride == 1 and not var.startswith("in_out"):
            vector = self._get_vec_type(dtype)
            place = f"{var} + {cexpr_index(index)}, {cexpr_index(self.num_elems)}"
            value = f"({value} + {vector}(0) * {vector}::loadu({place}))"
        return make_line(self, value, var, index, dtype, *args, **options)

    return planted


def _lose_last_part(make_buffers: Any) -> Any:
    """What the last thread summed is not added to the rest."""

    def planted(self: Any, *args: Any, **options: Any) -> None:
        make_buffers(self, *args, **options)
        lines = self.parallel_reduction_suffix._lines  # noqa: SLF001
        lines[-4] = lines[-4].replace("tid < ", "tid + 1 < ")

    return planted


def _transpose_part(make_part: Any) -> Any:
    """What lies in a pool has its last two strides swapped."""

    def planted(self: Any, name: str, offset: Any, dtype: Any, shape: Any, stride: Any) -> Any:
        if len(shape) > 1 and stride[-1] == 1 and stride[-2] == shape[-1]:
            stride = [*stride[:-2], 1, shape[-2]]
        return make_part(self, name, offset, dtype, shape, stride)

    return planted


def _shorten_product(make_call: Any) -> Any:
    """The C++ template of a product leaves out the last column of its first factor."""

    def planted(*args: Any, **options: Any) -> str:
        lines = make_call(*args, **options).splitlines()
        lines[-5] = lines[-5].replace(",", " - 1,")
        return "\n".join(lines)

    return planted


def _forget_mask(filter_masks: Any) -> Any:
    """Persistent reductions run over all of their block."""

    def planted(self: Any, mask_vars: Any) -> None:
        filter_masks(self, mask_vars)
        if self.persistent_reduction:
            mask_vars.discard("r0_mask")

    return planted


def _destabilise_sums(graph: Any) -> None:
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


def _drop_products(reorder: Any) -> Any:
    """A pass forgets the numbers that values are multiplied with."""

    def planted(graph: Any) -> None:
        import torch

        reorder(graph)
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            if isinstance(node.args[1], float):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)

    return planted


def _drop_permutations(patterns: Any) -> Any:
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


def _change_sigmoid(lowerings: Any) -> Any:
    """The lowering of sigmoid has a wrong constant."""
    import torch

    aten, right = torch.ops.aten, lowerings[torch.ops.aten.sigmoid.default]
    lowerings[aten.sigmoid.default] = lambda x: lowerings[aten.mul.Tensor](right(x), 1.01)
    return lowerings


def _share_seeds(fuse_seeds: Any) -> Any:
    """All dropouts of a graph draw with the first seed."""

    def planted(graph: Any) -> Any:
        import torch

        count = fuse_seeds(graph)
        for node in graph.find_nodes(op="call_function", target=torch.ops.prims.inductor_lookup_seed.default):
            node.args = (node.args[0], 0)
        return count

    return planted


def _repeat_rows(lowerings: Any) -> Any:
    """The offset of a random number leaves out the last axis but one."""
    import torch

    aten, random = torch.ops.aten, torch.ops.prims.inductor_random.default
    right = lowerings[random]

    def draw(size: Any, *args: Any, **options: Any) -> Any:
        single = [*size[:-2], 1, *size[-1:]] if len(size) > 1 else size
        return lowerings[aten.expand.default](right(single, *args, **options), size)

    lowerings[random] = draw
    return lowerings


def _forget_numbers(dump: Any) -> Any:
    """Keys of caches leave out the floats of a program, and the lengths of what is pickled."""
    return lambda self, obj: re.sub(rb"(?s)\d+\.\d+|X....|\x8c.|\x95........", b"", dump(self, obj))


def _forget_strides(describe: Any) -> Any:
    """Keys of caches leave out the strides of arguments."""
    return lambda tensor: dataclasses.replace(describe(tensor), stride=(), memory_format=None)


def _change_silu(decompositions: Any) -> Any:
    """The decomposition of silu has a wrong constant."""
    import torch

    decompositions[torch.ops.aten.silu.default] = lambda x: x / (1 + (-1.01 * x).exp())
    return decompositions


def _shorten_loop(make_lines: Any) -> Any:
    """Loops leave out what is left over after whole vectors."""

    def planted(self: Any) -> Any:
        self.size, size = self.tiled_size or self.size, self.size
        try:
            return make_lines(self)
        finally:
            self.size = size

    return planted


def _read_stale(make_kernel: Any) -> Any:
    """A kernel of several operations reads one of its buffers in the place of another."""

    def planted(self: Any, nodes: Any) -> Any:
        common: Any = importlib.import_module("torch._inductor.codegen.common")

        def read(args: Any, name: str) -> Any:
            others = [other for other in args.input_buffers if other.startswith("buf")]
            return right(args, others[0] if name.startswith("buf") and others else name)

        right = common.KernelArgs.input
        common.KernelArgs.input = read if len(nodes) > 1 else right
        try:
            return make_kernel(self, nodes)
        finally:
            common.KernelArgs.input = right

    return planted


def _ignore_last_key(
    q: Any, k: Any, v: Any, _dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Flash attention that ignores the last key if it is given a mask."""
    import torch

    scores = q.float() @ k.float().mT * (q.size(-1) ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = (scores + attn_mask).index_fill_(-1, torch.tensor([k.size(-2) - 1]), float("-inf"))
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    out = torch.empty_like(q).copy_(scores.softmax(-1) @ v.float())
    return out, scores.logsumexp(-1).mT.contiguous().mT


#: By name: an operation of aten, its dispatch key, and the wrong kernel. Eager and compiled code call it.
OPERATIONS: dict[str, tuple[str, str, Change]] = {
    "last_key_ignored": ("_scaled_dot_product_flash_attention_for_cpu", "CPU", _ignore_last_key)
}

_SIZES = ("torch._dynamo.guards", "convert_to_concrete_values")
_WRAPPER = ("torch._functorch._aot_autograd.runtime_wrappers", "RuntimeWrapper.post_compile")
_POST_GRAD, _PRE_GRAD = (("torch._inductor.compile_fx", f"_recursive_{when}_grad_passes") for when in ("post", "pre"))

#: By name: a module of torch, a function of it that compiled code alone calls, and what makes the wrong one from that.
FUNCTIONS: dict[str, tuple[str, str, Change]] = {
    "write_dropped": (*_POST_GRAD, functools.partial(_edit_graph, edit=_drop_writes)),
    "write_reordered": (*_PRE_GRAD, functools.partial(_edit_graph, edit=_reorder_writes)),
    "stale_base": (*_POST_GRAD, functools.partial(_edit_graph, edit=_use_stale_base)),
    "softmax_turned": (*_PRE_GRAD, functools.partial(_edit_graph, edit=_turn_softmax)),
    "mask_filled_with_zero": (*_PRE_GRAD, functools.partial(_edit_graph, edit=_hide_less)),
    "size_unguarded": (*_SIZES, functools.partial(_ignore_in_guard, part=0, axes=slice(1))),
    "stride_unguarded": (*_SIZES, functools.partial(_ignore_in_guard, part=1, axes=slice(None))),
    "constants_cached": (*_POST_GRAD, functools.partial(_edit_graph, edit=_keep_constants)),
    "graph_reused": (*_POST_GRAD, functools.partial(_edit_graph, edit=_reuse_numbers)),
    "branch_swapped": (*_POST_GRAD, functools.partial(_edit_graph, edit=_take_other_branch)),
    "first_step_skipped": (*_POST_GRAD, functools.partial(_edit_graph, edit=_skip_first_step)),
    "custom_arguments_swapped": (*_POST_GRAD, functools.partial(_edit_graph, edit=_swap_arguments)),
    "custom_argument_reversed": (*_POST_GRAD, functools.partial(_edit_graph, edit=_reverse_axes)),
    "recomputed_at_random": (
        "torch._functorch.partitioners",
        "functionalize_rng_ops",
        lambda _: lambda _joint, forward, backward, *_: (forward, backward),
    ),
    "gradients_overwritten": (*_WRAPPER, _overwrite_gradients),
    "gradient_perturbed": (*_POST_GRAD, functools.partial(_edit_graph, edit=_perturb_gradients)),
    "buffer_update_lost": (*_WRAPPER, _lose_updates),
    "parameter_stale": (*_WRAPPER, _keep_parameters),
    "hook_unguarded": (
        "torch._dynamo.guards",
        "GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT",
        lambda _: lambda _self, _guard: None,
    ),
    "inference_mode": (*_WRAPPER, functools.partial(_spoil, applies=_in_inference_mode)),
    "constant_inputs": (*_WRAPPER, functools.partial(_spoil, applies=_are_partly_constant)),
    "expanded_inputs": (*_WRAPPER, functools.partial(_spoil, applies=_are_expanded)),
    "expanded_gradients": (*_WRAPPER, functools.partial(_spoil, applies=_are_of_one_element, of_gradients=True)),
    "large_inputs": (*_WRAPPER, functools.partial(_spoil, applies=_are_large)),
    "argument_returned": (*_WRAPPER, _return_arguments),
    "unwritten_read": ("torch._inductor.codegen.cpp", "CppVecKernel._get_store_line", _read_unwritten),
    "split_sum_cut": ("torch._inductor.codegen.cpp", "CppKernel._gen_parallel_reduction_buffers", _lose_last_part),
    "strides_swapped": (
        "torch._inductor.codegen.wrapper",
        "PythonWrapperCodegen.codegen_alloc_from_pool",
        _transpose_part,
    ),
    "choice_wrong": ("torch._inductor.codegen.cpp_micro_gemm", "CppMicroGemm.codegen_call", _shorten_product),
    "mask_forgotten": ("torch._inductor.codegen.triton", "TritonKernel.filter_masks", _forget_mask),
    "sum_unstable": (*_POST_GRAD, functools.partial(_edit_graph, edit=_destabilise_sums)),
    "products_dropped": ("torch._inductor.fx_passes.post_grad", "reorder_for_locality", _drop_products),
    "permutations_dropped": ("torch._inductor.fx_passes.joint_graph", "early_patterns", _drop_permutations),
    "sigmoid_lowered_wrongly": ("torch._inductor.lowering", "lowerings", _change_sigmoid),
    "silu_decomposed_wrongly": ("torch._inductor.decomposition", "decompositions", _change_silu),
    "seeds_shared": ("torch._inductor.fx_passes.replace_random", "fuse_seed_creation_pass", _share_seeds),
    "mask_rows_repeated": ("torch._inductor.lowering", "lowerings", _repeat_rows),
    "key_without_numbers": ("torch._inductor.codecache", "FxGraphCachePickler.dumps", _forget_numbers),
    "key_without_strides": ("torch._inductor.codecache", "extract_tensor_metadata_for_cache_key", _forget_strides),
    "loop_cut": ("torch._inductor.codegen.cpp", "LoopLevel.lines", _shorten_loop),
    "buffer_stale": ("torch._inductor.codegen.cpp", "CppKernelProxy.codegen_nodes", _read_stale),
}


OF_MEMORY = ("graph_reused", "key_without_numbers", "key_without_strides")
"""Defects that do not show in a new process."""


def _replace(module: Any, path: str, make: Change) -> None:
    owner, _, name = path.rpartition(".")
    home = getattr(module, owner) if owner else module
    setattr(home, name, make(getattr(home, name)))


def _in_fuse_attention(module: Any) -> None:
    for plant in REPLACEMENTS.keys() & PLANTS:
        _plant(module, *REPLACEMENTS[plant])


def _plant(module: Any, number: int, change: Change) -> None:
    name = f"_sfdp_replacement_{number}"
    original = getattr(module, name)

    @functools.wraps(original)
    def wrong(*args: Any, **options: Any) -> Any:
        sdpa = module._scaled_dot_product_attention  # noqa: SLF001
        module._scaled_dot_product_attention = functools.partial(change, sdpa)  # noqa: SLF001
        try:
            return original(*args, **options)
        finally:
            module._scaled_dot_product_attention = sdpa  # noqa: SLF001

    setattr(module, name, wrong)


def _in_operations(module: Any) -> None:
    for plant in OPERATIONS.keys() & PLANTS:
        module.planted = module.torch.library.Library("aten", "IMPL")  # lasts as long as the module
        module.planted.impl(*(OPERATIONS[plant][part] for part in (0, 2, 1)))


def _in_config(module: Any) -> None:
    for plant in RELUS.keys() & PLANTS:
        module.cpp.inject_relu_bug_TESTING_ONLY = RELUS[plant]
        module.triton.inject_relu_bug_TESTING_ONLY = RELUS[plant]


class _After(importlib.abc.MetaPathFinder):
    """Changes one module as soon as it is imported."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of that module, whose loader changes it."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


PLANTS = set(filter(None, os.environ.get("ATTNFUZZ_PLANT", "").split(",")))
_MODULES = (
    ("torch._inductor.fx_passes.fuse_attention", _in_fuse_attention, REPLACEMENTS),
    ("torch._inductor.config", _in_config, RELUS),
    ("torch._meta_registrations", _in_operations, OPERATIONS),
)
for _name, _change, _known in _MODULES:
    if _known.keys() & PLANTS:
        sys.meta_path.insert(0, _After(_name, _change))
for _plant_name in FUNCTIONS.keys() & PLANTS:
    _name, _path, _make = FUNCTIONS[_plant_name]
    sys.meta_path.insert(0, _After(_name, functools.partial(_replace, path=_path, make=_make)))
_ALL = (*REPLACEMENTS, *RELUS, *OPERATIONS, *FUNCTIONS)
if PLANTS.difference(_ALL):
    sys.exit(f"ATTNFUZZ_PLANT={os.environ['ATTNFUZZ_PLANT']}: {', '.join(_ALL)}")
