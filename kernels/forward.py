"""The forward kernel: one program for a block of query rows of one head, with an online softmax over blocks of keys."""

import triton
import triton.language as tl

from kernels.tiles import LN2, LOG2E, add_weighted, compile_once, is_kept, product, scores, store


@compile_once
def forward_kernel(
    q, k, v, bias, mask, alibi, sinks, out, lse,
    q_b, q_h, q_i, q_d, k_b, k_h, k_j, k_d, v_b, v_h, v_j, v_d, out_b, out_h, out_i, out_d,
    bias_b, bias_h, bias_i, bias_j, mask_b, mask_h, mask_i, mask_j,
    heads, group, rows, columns, head_dim, value_dim, scale, softcap, left, right, offset, dropout_p, factor, seed,
    BIAS, MASK, ALIBI, SINKS, SOFTCAP, LEFT, RIGHT,
    DROPOUT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """`out` [batch, heads, rows, value_dim] and `lse` [batch * heads, rows], natural log, float32.

    `factor`, 1 / (1 - dropout_p), multiplies the sums. See kernels.attention.
    """
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_I
    head = tl.program_id(1)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = first + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)
    q_at = q + b * q_b + h * q_h + i[:, None] * q_i + d[None, :] * q_d
    query = tl.load(q_at, mask=(i[:, None] < rows) & (d[None, :] < head_dim), other=0.0)
    k += b * k_b + (h // group) * k_h
    v += b * v_b + (h // group) * v_h
    if BIAS:
        bias += b * bias_b + h * bias_h
    if MASK:
        mask += b * mask_b + h * mask_h
    slope = 0.0
    if ALIBI:
        slope = tl.load(alibi + h)
    # A sink is a score before the first key, without a value.
    top = tl.full([BLOCK_I], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_I], tl.float32)
    if SINKS:
        top = tl.zeros([BLOCK_I], tl.float32) + tl.load(sinks + h).to(tl.float32) * LOG2E
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    sums = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)

    start, stop = key_range(first, columns, left, right, offset, BLOCK_I, BLOCK_J, LEFT, RIGHT)
    for block in range(start, stop, BLOCK_J):
        j = block + tl.arange(0, BLOCK_J)
        k_at = k + j[None, :] * k_j + d[:, None] * k_d
        key = tl.load(k_at, mask=(j[None, :] < columns) & (d[:, None] < head_dim), other=0.0)
        dots = product(query, key, tl.zeros([BLOCK_I, BLOCK_J], tl.float32))
        s, _ = scores(
            dots, i[:, None], j[None, :], bias, bias_i, bias_j, mask, mask_i, mask_j, slope, scale, softcap, left,
            right, offset, rows, columns, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(s, 1))
        # -inf - -inf is NaN: rows that have seen no key yet subtract 0.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(s - base[:, None])
        shrunk = tl.exp2(top - base)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(is_kept(i[:, None], j[None, :], head, rows, columns, dropout_p, seed), weights, 0.0)
        v_at = v + j[:, None] * v_j + d[None, :] * v_d
        value = tl.load(v_at, mask=(j[:, None] < columns) & (d[None, :] < value_dim), other=0.0)
        sums = add_weighted(weights, value, sums * shrunk[:, None])
        top = higher

    normal = tl.where(total == 0.0, 1.0, total)
    out_at = out + b * out_b + h * out_h + i[:, None] * out_i + d[None, :] * out_d
    store(out_at, sums * (factor / normal)[:, None], (i[:, None] < rows) & (d[None, :] < value_dim))
    logarithm = tl.where(total == 0.0, float("-inf"), (top + tl.log2(normal)) * LN2)
    tl.store(lse + head.to(tl.int64) * rows + i, logarithm, mask=i < rows)


@triton.jit
def key_range(first, columns, left, right, offset, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, LEFT, RIGHT):
    """(start, stop): the keys that the block of rows from `first` keeps; `start` is a multiple of BLOCK_J."""
    start = 0
    stop = columns
    if LEFT:
        start = tl.minimum(tl.maximum(first + offset - left, 0) // BLOCK_J * BLOCK_J, columns // BLOCK_J * BLOCK_J)
    if RIGHT:
        stop = tl.minimum(tl.maximum(first + BLOCK_I + offset + right, 0), columns)
    return start, stop
