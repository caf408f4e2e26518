"""The forward kernel: one program for a block of query rows of one head, with an online softmax over blocks of keys."""

import triton
import triton.language as tl

from kernels.tiles import LN2, LOG2E, add_weighted, is_kept, load, product, scores, store


@triton.jit
def forward_kernel(
    q, k, v, bias, mask, alibi, sinks, out, lse,
    q_b, q_h, q_i, q_d, k_b, k_h, k_j, k_d, v_b, v_h, v_j, v_d, out_b, out_h, out_i, out_d,
    bias_b, bias_h, bias_i, bias_j, mask_b, mask_h, mask_i, mask_j,
    heads, group, rows, columns, head_dim, value_dim, scale, softcap, left, right, offset, dropout_p, factor, seed,
    BIAS, MASK, ALIBI, SINKS, SOFTCAP, LEFT, RIGHT,
    DROPOUT: tl.constexpr, FAST: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """`out` [batch, heads, rows, value_dim] and lse [batch * heads, rows], natural log, float32. `factor` multiplies
    the sums: 1 / (1 - dropout_p). See kernels.attention."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_I
    head = tl.program_id(1)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = first + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)
    query = load(q + b * q_b + h * q_h + i[:, None] * q_i + d[None, :] * q_d,
                 i[:, None] < rows, d[None, :] < head_dim, True, not FAST)  # fmt: skip
    k += b * k_b + (h // group) * k_h
    v += b * v_b + (h // group) * v_h
    if BIAS:
        bias += b * bias_b + h * bias_h
    if MASK:
        mask += b * mask_b + h * mask_h
    slope = 0.0
    if ALIBI:
        slope = tl.load(alibi + h)
    # A sink is a score that is there before the first key and has no value.
    top = tl.full([BLOCK_I], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_I], tl.float32)
    if SINKS:
        top = tl.zeros([BLOCK_I], tl.float32) + tl.load(sinks + h).to(tl.float32) * LOG2E
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    sums = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)

    edges = key_range(first, columns, left, right, offset, BLOCK_I, BLOCK_J, LEFT, RIGHT, FAST)
    for part in tl.static_range((0 if LEFT else 1) if FAST else 2, 3):
        top, total, sums = accumulate_output(
            top, total, sums, query, k, v, bias, mask, slope, edges[part], edges[part + 1], i, d, head,
            k_j, k_d, v_j, v_d, bias_i, bias_j, mask_i, mask_j, rows, columns, scale, softcap, left, right, offset,
            dropout_p, seed, head_dim, value_dim, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT, DROPOUT,
            FAST, BLOCK_J, part != 1,
        )  # fmt: skip

    normal = tl.where(total == 0.0, 1.0, total)
    at = out + b * out_b + h * out_h + i[:, None] * out_i + d[None, :] * out_d
    store(at, sums * (factor / normal)[:, None], (i[:, None] < rows) & (d[None, :] < value_dim))
    logarithm = tl.where(total == 0.0, float("-inf"), (top + tl.log2(normal)) * LN2)
    tl.store(lse + head.to(tl.int64) * rows + i, logarithm, mask=i < rows)


@triton.jit
def key_range(
    first, columns, left, right, offset, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, LEFT, RIGHT, FAST: tl.constexpr,
):  # fmt: skip
    """(start, inner_start, inner_stop, stop): the keys that the rows from `first` on see, and within them the whole
    blocks that every row sees entirely, if FAST. All but `stop` are multiples of BLOCK_J."""
    start, inner_start = 0, 0
    stop = columns
    inner_stop = columns // BLOCK_J * BLOCK_J
    if LEFT:
        start = tl.minimum(tl.maximum(first + offset - left, 0) // BLOCK_J * BLOCK_J, columns // BLOCK_J * BLOCK_J)
        inner_start = tl.cdiv(tl.maximum(first + BLOCK_I - 1 + offset - left, 0), BLOCK_J) * BLOCK_J
    if RIGHT:
        stop = tl.minimum(tl.maximum(first + BLOCK_I + offset + right, 0), columns)
        inner_stop = tl.minimum(inner_stop, tl.maximum(first + offset + right + 1, 0) // BLOCK_J * BLOCK_J)
    if LEFT:
        inner_start = tl.maximum(tl.minimum(inner_start, tl.cdiv(stop, BLOCK_J) * BLOCK_J), start)
    inner_stop = tl.maximum(inner_stop, inner_start) if FAST else start
    return start, inner_start, inner_stop, stop


@triton.jit
def accumulate_output(
    top, total, sums, query, k, v, bias, mask, slope, start, stop, i, d, head, k_j, k_d, v_j, v_d,
    bias_i, bias_j, mask_i, mask_j, rows, columns, scale, softcap, left, right, offset, dropout_p, seed,
    head_dim, value_dim, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT, DROPOUT: tl.constexpr,
    FAST: tl.constexpr, BLOCK_J: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys from `start` to `stop`: running maximum (base 2), sum of weights, weighted
    values."""
    BLOCK_I: tl.constexpr = query.shape[0]
    for block in range(start, stop, BLOCK_J):
        j = block + tl.arange(0, BLOCK_J)
        key = load(k + j[None, :] * k_j + d[:, None] * k_d, j[None, :] < columns, d[:, None] < head_dim,
                   BOUNDED, not FAST)  # fmt: skip
        dots = product(query, key, tl.zeros([BLOCK_I, BLOCK_J], tl.float32))
        s, _ = scores(
            dots, i[:, None], j[None, :], bias, bias_i, bias_j, mask, mask_i, mask_j, slope, scale, softcap, left,
            right, offset, rows, columns, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT, FAST, BOUNDED,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(s, 1))
        # -inf - -inf is NaN: rows that have seen no key yet subtract 0.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(s - base[:, None])
        shrunk = tl.exp2(top - base)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(is_kept(i[:, None], j[None, :], head, rows, columns, dropout_p, seed), weights, 0.0)
        value = load(v + j[:, None] * v_j + d[None, :] * v_d, j[:, None] < columns, d[None, :] < value_dim,
                     BOUNDED, not FAST)  # fmt: skip
        sums = add_weighted(weights, value, sums * shrunk[:, None])
        top = higher
    return top, total, sums
