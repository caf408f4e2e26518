"""The table of planted mistakes: errors in attention's arithmetic that `benchmarks.oracle_power.simulated` can make."""

from dataclasses import dataclass

ALL = ("float32", "bfloat16", "float16")
LOW = ("bfloat16", "float16")
SINGLE = ("float32",)
FORWARD, BACKWARD, DROPOUT = "forward", "backward", "dropout"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A planted mistake."""

    what: str  # the wrong step, in words
    where: str = FORWARD  # the pass with the wrong step; a wrong forward pass makes gradients wrong too
    variant: str = "causal"  # the problem of `benchmarks.oracle_power.cases` in which the step occurs
    dtypes: tuple[str, ...] = ALL  # the dtypes in which the step is wrong
    story: str = ""  # a real kernel with this mistake, if one is known


MISTAKES = {
    "scores_in_low_precision": Mistake("scores are stored in the inputs' dtype", dtypes=LOW),
    "scores_summed_in_low_precision": Mistake(
        "q . k is summed in the inputs' dtype, 16 features at a time", dtypes=LOW
    ),
    "exponent_in_low_precision": Mistake("score - maximum is rounded to the inputs' dtype before exp", dtypes=LOW),
    "weights_truncated": Mistake(
        "weights are truncated to the inputs' dtype, not rounded",
        dtypes=LOW,
        story="Triton's interpreter: .to(bfloat16) drops bits",
    ),
    "output_truncated": Mistake(
        "the output is truncated to its dtype, not rounded",
        dtypes=LOW,
        story="Triton's interpreter: .to(bfloat16) drops bits",
    ),
    "sums_in_low_precision": Mistake(
        "sums of weighted values are kept in the inputs' dtype between blocks", dtypes=LOW
    ),
    "sums_in_float16": Mistake(
        "sums of weighted values are kept in float16 between blocks", dtypes=("float32", "bfloat16")
    ),
    "denominators_in_low_precision": Mistake("sums of weights are kept in the inputs' dtype", dtypes=LOW),
    "products_in_ten_bits": Mistake(
        "q, k and v lose all but ten bits of fraction",
        dtypes=SINGLE,
        story="tl.dot takes TF32 for float32 unless told otherwise",
    ),
    "exp_by_a_cubic": Mistake(
        "exp2 by a cubic, exact enough for low precision only",
        dtypes=SINGLE,
        story="FlashAttention-4 does so, for float16 and bfloat16",
    ),
    "log2e_in_three_digits": Mistake("log2 e = 1.44"),
    "scale_off_by_a_thousandth": Mistake("scale is 0.1 % too large, in both passes"),
    "last_key_dropped": Mistake("the last key is never seen"),
    "sums_not_rescaled": Mistake("sums of weighted values do not shrink when a later block raises the maximum"),
    "sum_not_rescaled": Mistake("sums of weights do not shrink when a later block raises the maximum"),
    "rescaled_by_the_block": Mistake("earlier sums shrink by the block's maximum in place of the largest so far"),
    "small_rescale_skipped": Mistake(
        "nothing shrinks where the maximum grows by less than 0.1",
        story="FlashAttention-4 skips small rescales, and keeps the old maximum then",
    ),
    "maximum_before_scale": Mistake(
        "the maximum is taken before a negative scale is applied",
        variant="negative_scale",
        story="Triton kernels that fold the scale in after the maximum",
    ),
    "denominators_without_last_block": Mistake("sums of weights miss the last block of keys"),
    "first_row_zeroed": Mistake("the first query row of every head is zero"),
    "last_row_zeroed": Mistake("the last query row of every head is zero"),
    "causal_off_by_one": Mistake("every query sees one key too many"),
    "corner_ignored": Mistake(
        "causal from the top left where the bottom right is meant",
        variant="bottom_right",
        story="FlashAttention changed its own from one to the other in 2.1",
    ),
    "tail_keys_counted": Mistake("the padding of the last block counts as keys with score 0", variant="tail"),
    "tail_features_ignored": Mistake("features past the last multiple of 16 are ignored", variant="features"),
    "finite_minus_infinity": Mistake(
        "-1e4 in the place of -inf: a row without a key is the mean of the values",
        variant="empty_rows",
        story="finite fills in Triton kernels: -1e6, -5e4",
    ),
    "heads_interleaved": Mistake("query head h reads key head h mod kv_heads", variant="grouped"),
    "bias_scaled": Mistake("the bias is added before the scale", variant="bias"),
    "bias_of_the_first_head": Mistake("every head gets the first one's bias", variant="bias"),
    "slope_of_the_first_head": Mistake("every head gets the first one's ALiBi slope", variant="alibi"),
    "window_short_by_one": Mistake("the window is one key short", variant="window"),
    "sink_ignored": Mistake("sinks are left out of the denominators", variant="sinks"),
    "delta_omitted": Mistake("dS = P dP", BACKWARD),
    "delta_of_half_the_features": Mistake("delta sums half of the features", BACKWARD),
    "statistics_in_base_two": Mistake(
        "weights are 2^(score log2 e - ln sum): the two bases mixed",
        BACKWARD,
        story="FlagGems and flex keep base 2, most others the natural one",
    ),
    "statistics_stale": Mistake("stored statistics miss the last block of keys", BACKWARD),
    "statistics_without_mask": Mistake(
        "rows past the end of one head overwrite the next head's statistics",
        BACKWARD,
        "tail",
        story="FlagGems' backward",
    ),
    "causal_off_by_one_backward": Mistake("every query sees one key too many in the backward pass", BACKWARD),
    "gradients_not_scaled": Mistake("dq and dk are not multiplied by the scale", BACKWARD),
    "dq_off_by_a_thousandth": Mistake("dq is 0.1 % too large", BACKWARD),
    "dq_without_last_block": Mistake("dq misses the last block of keys", BACKWARD),
    "dq_in_low_precision": Mistake("dq is kept in the inputs' dtype between blocks of keys", BACKWARD, dtypes=LOW),
    "dk_in_low_precision": Mistake("dk is kept in the inputs' dtype between blocks of queries", BACKWARD, dtypes=LOW),
    "dk_of_one_head": Mistake("dk keeps the last query head of a group only", BACKWARD, "grouped"),
    "dk_row_zeroed": Mistake("the last row of dk is zero", BACKWARD, "full"),
    "dv_row_shrunk": Mistake("the first row of dv is 0.9 of what it should be", BACKWARD),
    "dv_not_normalised": Mistake("dv takes weights that are not divided by their sum", BACKWARD),
    "score_gradients_truncated": Mistake("dS is truncated to the inputs' dtype, not rounded", BACKWARD, dtypes=LOW),
    "softcap_without_derivative": Mistake("the chain rule through the soft cap is forgotten", BACKWARD, "softcap"),
    "dbias_scaled": Mistake("the gradient of the bias is multiplied by the scale", BACKWARD, "bias"),
    "dbias_of_one_head": Mistake("a bias all heads share gets the last head's gradient only", BACKWARD, "shared_bias"),
    "dropout_not_scaled": Mistake("kept weights are not multiplied by 1 / (1 - p)", DROPOUT, "dropout"),
    "dropout_scaled_by_p": Mistake("kept weights are multiplied by 1 / p", DROPOUT, "dropout"),
    "dropout_keeps_p": Mistake("weights are kept with probability p", DROPOUT, "dropout"),
    "dropout_keeps_too_few": Mistake(
        "0.95 (1 - p) of the weights are kept",
        DROPOUT,
        "dropout",
        story="FlashAttention-2's 8 bits are off by less, 0.2 %",
    ),
    "dropout_same_for_all_heads": Mistake("all heads drop the same weights", DROPOUT, "dropout"),
    "dropout_same_for_all_blocks": Mistake("all blocks of keys drop the same weights", DROPOUT, "dropout"),
    "dropout_before_the_sum": Mistake("sums of weights count kept ones only", DROPOUT, "dropout"),
    "dropout_not_scaled_backward": Mistake("the backward pass leaves out 1 / (1 - p)", DROPOUT, "dropout"),
    "dropout_another_mask_backward": Mistake(
        "the backward pass drops other weights than the forward pass", DROPOUT, "dropout"
    ),
}

WEIGHTS_ROUNDED_FIRST = "weights_rounded_first"
"""No mistake: gradients of scores come from rounded weights, as in PyTorch's memory-efficient kernel."""

WEIGHTS_NORMALISED = "weights_normalised"
"""No mistake: weights are divided by their sum before they are rounded, as in an unfused program."""
DELTA_UNROUNDED = "delta_unrounded"
"""No mistake: delta comes from the output before it is rounded."""
DELTA_OF_WEIGHTS = "delta_of_weights"
"""No mistake: delta is the sum of weights times their gradients, as in the derivative of torch's softmax."""
RIGHT = ("", WEIGHTS_ROUNDED_FIRST, WEIGHTS_NORMALISED, DELTA_UNROUNDED, DELTA_OF_WEIGHTS)
"""The names of kernels without a mistake."""
