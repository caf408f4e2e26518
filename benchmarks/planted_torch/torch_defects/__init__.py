"""The defects that can be planted in torch, by name, and where each goes."""

import functools

from . import calls, casts, codegen, graphs, rules, sharding, views
from .attention import OPERATIONS, RELUS, REPLACEMENTS, Change
from .compilers import COMPILER_DEFECTS
from .structures import STRUCTURES

__all__ = (
    "COMPILER_DEFECTS",
    "FUNCTIONS",
    "HARMLESS",
    "OF_MEMORY",
    "OPERATIONS",
    "RELUS",
    "REPLACEMENTS",
    "STRUCTURES",
    "Change",
)

_AUTOCAST = ("torch.amp.autocast_mode", "_enter_autocast")
_LOWERINGS = ("torch._inductor.lowering", "lowerings")
_REGIONS = ("torch._higher_order_ops.passes.inline_invoke_subgraph", "inline_single_use_invoke_subgraph")
_RULE = ("torch._functorch.autograd_function", "AutogradFunctionApply.__call__")
_SIZES = ("torch._dynamo.guards", "convert_to_concrete_values")
_WRAPPERS = "torch._functorch._aot_autograd.runtime_wrappers"
_WRAPPER = (_WRAPPERS, "RuntimeWrapper.post_compile")
_TRANSFORMS = "torch._functorch.eager_transforms"
_OVERLAP = (_WRAPPERS, "compute_overlapping_inputs")
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_POST_GRAD, _PRE_GRAD = (("torch._inductor.compile_fx", f"_recursive_{when}_grad_passes") for when in ("post", "pre"))

#: By name: a module of torch, a function of it that compiled code alone calls, and what makes the wrong one from that.
FUNCTIONS: dict[str, tuple[str, str, Change]] = {
    "write_dropped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.drop_writes)),
    "write_reordered": (*_PRE_GRAD, functools.partial(graphs.edit_graph, edit=graphs.reorder_writes)),
    "stale_base": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.use_stale_base)),
    "softmax_turned": (*_PRE_GRAD, functools.partial(graphs.edit_graph, edit=graphs.turn_softmax)),
    "mask_filled_with_zero": (*_PRE_GRAD, functools.partial(graphs.edit_graph, edit=graphs.hide_less)),
    "size_unguarded": (*_SIZES, functools.partial(calls.ignore_in_guard, part=0, axes=slice(1))),
    "stride_unguarded": (*_SIZES, functools.partial(calls.ignore_in_guard, part=1, axes=slice(None))),
    "constants_cached": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.keep_constants)),
    "graph_reused": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.reuse_numbers)),
    "branch_swapped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.take_other_branch)),
    "first_step_skipped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.skip_first_step)),
    "first_body_reused": (*_REGIONS, functools.partial(graphs.edit_graph, edit=graphs.reuse_first_body)),
    "inner_region_skipped": (*_REGIONS, functools.partial(graphs.edit_graph, edit=graphs.skip_inner_regions)),
    "carry_repeated": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.hand_on_first)),
    "captured_gradient_cut": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.forget_earlier_steps)),
    "custom_arguments_swapped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.swap_arguments)),
    "custom_argument_reversed": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.reverse_axes)),
    "members_mismatched": (*_PRE_GRAD, functools.partial(graphs.edit_graph, edit=graphs.mismatch_members)),
    "first_head_masked": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.mask_first_head)),
    "tangents_are_primals": (*_PRE_GRAD, functools.partial(graphs.edit_graph, edit=graphs.take_primals)),
    "recomputed_at_random": (
        "torch._functorch.partitioners",
        "functionalize_rng_ops",
        lambda _: lambda _joint, forward, backward, *_: (forward, backward),
    ),
    "gradients_overwritten": (*_WRAPPER, calls.overwrite_gradients),
    "gradient_perturbed": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.perturb_gradients)),
    "buffer_update_lost": (*_WRAPPER, calls.lose_updates),
    "parameter_stale": (*_WRAPPER, calls.keep_parameters),
    "hook_unguarded": (
        "torch._dynamo.guards",
        "GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT",
        lambda _: lambda _self, _guard: None,
    ),
    "number_cut": (*_WRAPPER, calls.cut_numbers),
    "overlap_missed": (*_OVERLAP, functools.partial(calls.miss_overlap, of_module=False)),
    "module_overlap_missed": (*_OVERLAP, functools.partial(calls.miss_overlap, of_module=True)),
    "flag_unguarded": ("torch._dynamo.guards", "GuardBuilder.BOOL_MATCH", calls.guard_no_flag),
    "inference_mode": (*_WRAPPER, functools.partial(calls.spoil, applies=calls.in_inference_mode)),
    "constant_inputs": (*_WRAPPER, functools.partial(calls.spoil, applies=calls.are_partly_constant)),
    "expanded_inputs": (*_WRAPPER, functools.partial(calls.spoil, applies=calls.are_expanded)),
    "expanded_gradients": (
        *_WRAPPER,
        functools.partial(calls.spoil, applies=calls.are_of_one_element, of_gradients=True),
    ),
    "large_inputs": (*_WRAPPER, functools.partial(calls.spoil, applies=calls.are_large)),
    "argument_returned": (*_WRAPPER, calls.return_arguments),
    "unwritten_read": ("torch._inductor.codegen.cpp", "CppVecKernel._get_store_line", codegen.read_unwritten),
    "split_sum_cut": (
        "torch._inductor.codegen.cpp",
        "CppKernel._gen_parallel_reduction_buffers",
        codegen.lose_last_part,
    ),
    "strides_swapped": (
        "torch._inductor.codegen.wrapper",
        "PythonWrapperCodegen.codegen_alloc_from_pool",
        codegen.transpose_part,
    ),
    "choice_wrong": ("torch._inductor.codegen.cpp_micro_gemm", "CppMicroGemm.codegen_call", codegen.shorten_product),
    "graph_input_stale": (
        "torch._inductor.cudagraph_trees",
        "CUDAGraphNode._copy_inputs_and_remove_from_src",
        calls.keep_last_input,
    ),
    "mask_forgotten": ("torch._inductor.codegen.triton", "TritonKernel.filter_masks", codegen.forget_mask),
    "sum_unstable": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=graphs.destabilise_sums)),
    "products_dropped": ("torch._inductor.fx_passes.post_grad", "reorder_for_locality", graphs.drop_products),
    "permutations_dropped": ("torch._inductor.fx_passes.joint_graph", "early_patterns", graphs.drop_permutations),
    "sigmoid_lowered_wrongly": (*_LOWERINGS, codegen.change_sigmoid),
    "silu_decomposed_wrongly": ("torch._inductor.decomposition", "decompositions", codegen.change_silu),
    "seeds_shared": ("torch._inductor.fx_passes.replace_random", "fuse_seed_creation_pass", graphs.share_seeds),
    "mask_rows_repeated": (*_LOWERINGS, codegen.repeat_rows),
    "self_included": (*_LOWERINGS, codegen.include_self),
    "products_narrowed": (*_LOWERINGS, codegen.narrow_products),
    "key_without_numbers": ("torch._inductor.codecache", "FxGraphCachePickler.dumps", calls.forget_numbers),
    "key_without_strides": ("torch._inductor.codecache", "extract_tensor_metadata_for_cache_key", calls.forget_strides),
    "loop_cut": ("torch._inductor.codegen.cpp", "LoopLevel.lines", codegen.shorten_loop),
    "shard_kept": ("torch.distributed.tensor._ops._math_ops", "normalize_dim", sharding.keep_shards),
    "offset_forgotten": (_PLACEMENTS, "_MaskPartial._mask_tensor", sharding.forget_offset),
    "partial_kept": (_PLACEMENTS, "Partial._reduce_value", sharding.keep_partial),
    "second_partial_kept": (_PLACEMENTS, "Partial._reduce_value", sharding.keep_second_partial),
    "moved_shard_reversed": (_PLACEMENTS, "Shard._to_new_shard_dim", sharding.reverse_moved_shard),
    "clip_forgotten": (*_RULE, rules.forget_clips),
    "slots_swapped": (*_RULE, rules.swap_slots),
    "copy_back_lost": (_TRANSFORMS, "_propagate_functional_input_mutation", lambda _: lambda _given, _written: None),
    "view_not_replayed": (_TRANSFORMS, "_maybe_unwrap_functional_tensor", rules.replay_no_views),
    "autocast_kept": (*_AUTOCAST, casts.keep_autocast),
    "inner_dtype_ignored": (*_AUTOCAST, casts.ignore_inner_dtype),
    "shared_offset_lost": (_WRAPPERS, "merge_view_inputs", calls.lose_offsets),
    "diagonal_cut": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.cut_diagonals)),
    "bytes_cut": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.cut_bytes)),
    "sum_wrapped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.wrap_sums)),
    "negative_ignored": ("torch._inductor.decomposition", "decompositions", codegen.ignore_negative),
    "real_in_both_parts": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.add_to_both_parts)),
    "own_dtype_saturated": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.saturate_own_dtypes)),
    "pooled_sizes_swapped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.swap_pooled_sizes)),
    "remainder_dropped": (*_POST_GRAD, functools.partial(graphs.edit_graph, edit=views.drop_remainders)),
    "buffer_stale": ("torch._inductor.codegen.cpp", "CppKernelProxy.codegen_nodes", codegen.read_stale),
}

FUNCTIONS |= {
    name: (*_WRAPPER, functools.partial(calls.spoil_structured, applies=applies))
    for name, applies in STRUCTURES.items()
}

HARMLESS: dict[str, tuple[str, str, Change]] = {
    "fusion_lost": ("torch._inductor.fx_passes.fuse_attention", "_sfdp_params_check", lambda _: lambda _match: False)
}
"""As `FUNCTIONS`, but all results stay right."""

OF_MEMORY = ("graph_reused", "key_without_numbers", "key_without_strides")
"""Defects that do not show in a new process."""
