"""What is known of aten operations by name (overloads alike)."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Results carry no rounding of their own: data movement, selection, sign changes, constants.
EXACT = _names("""
    _to_copy abs alias amax amin arange argmax argmin as_strided bernoulli broadcast_to cat ceil clamp clamp_max
    clamp_min clone constant_pad_nd contiguous copy copy_ detach detach_ embedding empty empty_like empty_strided
    expand eye fill fill_ flip floor full full_like gather index index_select lift lift_fresh lift_fresh_copy
    masked_fill masked_fill_ max maximum min minimum narrow native_dropout neg neg_ new_empty new_empty_strided
    new_full new_ones new_zeros ones ones_like permute pin_memory put_ relu relu_ repeat reshape roll round
    scalar_tensor scatter select select_backward select_scatter sgn sign slice slice_backward slice_scatter sort
    split stack t threshold_backward topk transpose tril tril_ triu triu_ unbind unfold unsqueeze view where zero_
    zeros zeros_like _unsafe_view _reshape_alias _local_scalar_dense set_ resize_
""")

#: Draw from the random generator. The tag `nondeterministic_seeded` is wider: fused attention has it, dropout or not.
RANDOM = _names("""
    bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial native_dropout normal normal_ rand
    rand_like randint randint_like randn randn_like random_ randperm rrelu_with_noise uniform uniform_
""")

#: Results are memory that nobody has written to.
UNWRITTEN = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"])

#: Add any number of their elements to one of the result, in its dtype.
SCATTERING = _names("""
    _index_put_impl_ embedding_dense_backward index_add index_add_ index_put index_put_ scatter_add scatter_add_
""")
