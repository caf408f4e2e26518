"""The backward kernels: dk and dv over blocks of keys, then dq (and the scores' gradient) over blocks of queries.

No atomics: every element is written once by one program, so a repeat is bitwise equal.
"""

import triton
import triton.language as tl

from kernels.forward import key_range
from kernels.tiles import LOG2E, add_weighted, compile_once, is_kept, product, scores, store


@compile_once
def dkdv_kernel(
    q, k, v, bias, mask, alibi, dout, lse, delta, dk, dv,
    q_b, q_h, q_i, q_d, k_b, k_h, k_j, k_d, v_b, v_h, v_j, v_d, dout_b, dout_h, dout_i, dout_d,
    dk_b, dk_h, dk_j, dk_d, dv_b, dv_h, dv_j, dv_d, bias_b, bias_h, bias_i, bias_j, mask_b, mask_h, mask_i, mask_j,
    heads, group, rows, columns, head_dim, value_dim, scale, softcap, left, right, offset, dropout_p, factor, seed,
    BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
    DROPOUT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """`dk` and `dv` of one block of keys of one key head, from all query heads that read it.

    Tiles are [keys, queries], since a transposed accumulator as operand of a product gave wrong gradients on Hopper
    with Triton 3.4.
    """
    first = tl.program_id(0) * BLOCK_J
    kv_heads = heads // group
    b, kv_head = (tl.program_id(1) // kv_heads).to(tl.int64), (tl.program_id(1) % kv_heads).to(tl.int64)
    j = first + tl.arange(0, BLOCK_J)
    d = tl.arange(0, BLOCK_D)
    k_at = k + b * k_b + kv_head * k_h + j[:, None] * k_j + d[None, :] * k_d
    key = tl.load(k_at, mask=(j[:, None] < columns) & (d[None, :] < head_dim), other=0.0)
    v_at = v + b * v_b + kv_head * v_h + j[:, None] * v_j + d[None, :] * v_d
    value = tl.load(v_at, mask=(j[:, None] < columns) & (d[None, :] < value_dim), other=0.0)
    # The queries that keep these keys: as for the keys of a query, with queries and keys exchanged.
    start, stop = key_range(first, rows, right, left, -offset, BLOCK_J, BLOCK_I, RIGHT, LEFT)
    key_sums = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    value_sums = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for member in range(group):
        h = kv_head * group + member
        head = b * heads + h
        q_of, dout_of = q + b * q_b + h * q_h, dout + b * dout_b + h * dout_h
        lse_of, delta_of = lse + head * rows, delta + head * rows
        bias_of, mask_of = bias, mask
        if BIAS:
            bias_of = bias + b * bias_b + h * bias_h
        if MASK:
            mask_of = mask + b * mask_b + h * mask_h
        slope = 0.0
        if ALIBI:
            slope = tl.load(alibi + h)
        for block in range(start, stop, BLOCK_I):
            i = block + tl.arange(0, BLOCK_I)
            q_at = q_of + i[:, None] * q_i + d[None, :] * q_d
            query = tl.load(q_at, mask=(i[:, None] < rows) & (d[None, :] < head_dim), other=0.0)
            dots = product(key, tl.trans(query), tl.zeros([BLOCK_J, BLOCK_I], tl.float32))
            s, tanh = scores(
                dots, i[None, :], j[:, None], bias_of, bias_i, bias_j, mask_of, mask_i, mask_j, slope, scale, softcap,
                left, right, offset, rows, columns, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
            )  # fmt: skip
            weights = tl.exp2(s - load_lse(lse_of, i, rows)[None, :])
            dout_at = dout_of + i[:, None] * dout_i + d[None, :] * dout_d
            upstream = tl.load(dout_at, mask=(i[:, None] < rows) & (d[None, :] < value_dim), other=0.0)
            dweights = product(value, tl.trans(upstream), tl.zeros([BLOCK_J, BLOCK_I], tl.float32))
            dropped = weights
            if DROPOUT:
                kept = is_kept(i[None, :], j[:, None], head, rows, columns, dropout_p, seed)
                dropped = tl.where(kept, weights * factor, 0.0)
                dweights = tl.where(kept, dweights * factor, 0.0)
            value_sums = add_weighted(dropped, upstream, value_sums)
            shift = tl.load(delta_of + i, mask=i < rows, other=0.0)
            dscores = weights * (dweights - shift[None, :])
            if SOFTCAP:
                dscores *= 1.0 - tanh * tanh
            key_sums = add_weighted(dscores, query, key_sums)
    store(dk + b * dk_b + kv_head * dk_h + j[:, None] * dk_j + d[None, :] * dk_d, key_sums * scale,
          (j[:, None] < columns) & (d[None, :] < head_dim))  # fmt: skip
    store(dv + b * dv_b + kv_head * dv_h + j[:, None] * dv_j + d[None, :] * dv_d, value_sums,
          (j[:, None] < columns) & (d[None, :] < value_dim))  # fmt: skip


@triton.jit
def load_lse(lse, i, rows):
    """log2 of each row's sum of exponentials; 0 for rows without a key, whose weights are 0."""
    logarithm = tl.load(lse + i, mask=i < rows, other=0.0)
    return tl.where(logarithm == float("-inf"), 0.0, logarithm * LOG2E)


@compile_once
def dq_kernel(
    q, k, v, bias, mask, alibi, dout, lse, delta, dq, dscores,
    q_b, q_h, q_i, q_d, k_b, k_h, k_j, k_d, v_b, v_h, v_j, v_d, dout_b, dout_h, dout_i, dout_d,
    dq_b, dq_h, dq_i, dq_d, bias_b, bias_h, bias_i, bias_j, mask_b, mask_h, mask_i, mask_j,
    heads, group, rows, columns, head_dim, value_dim, scale, softcap, left, right, offset, dropout_p, factor, seed,
    BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
    DROPOUT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """`dq` of one block of queries of one head.

    With `dscores`, [batch * heads, rows, columns] float32 of zeros, also the gradient of the biased scores.
    """
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_I
    head = tl.program_id(1)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = first + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)
    q_at = q + b * q_b + h * q_h + i[:, None] * q_i + d[None, :] * q_d
    query = tl.load(q_at, mask=(i[:, None] < rows) & (d[None, :] < head_dim), other=0.0)
    dout_at = dout + b * dout_b + h * dout_h + i[:, None] * dout_i + d[None, :] * dout_d
    upstream = tl.load(dout_at, mask=(i[:, None] < rows) & (d[None, :] < value_dim), other=0.0)
    base = load_lse(lse + head.to(tl.int64) * rows, i, rows)
    shift = tl.load(delta + head.to(tl.int64) * rows + i, mask=i < rows, other=0.0)
    k += b * k_b + (h // group) * k_h
    v += b * v_b + (h // group) * v_h
    if BIAS:
        bias += b * bias_b + h * bias_h
    if MASK:
        mask += b * mask_b + h * mask_h
    if dscores is not None:
        dscores += head.to(tl.int64) * rows * columns
    slope = 0.0
    if ALIBI:
        slope = tl.load(alibi + h)
    start, stop = key_range(first, columns, left, right, offset, BLOCK_I, BLOCK_J, LEFT, RIGHT)
    sums = tl.zeros([BLOCK_I, BLOCK_D], tl.float32)
    for block in range(start, stop, BLOCK_J):
        j = block + tl.arange(0, BLOCK_J)
        k_at = k + j[:, None] * k_j + d[None, :] * k_d
        key = tl.load(k_at, mask=(j[:, None] < columns) & (d[None, :] < head_dim), other=0.0)
        dots = product(query, tl.trans(key), tl.zeros([BLOCK_I, BLOCK_J], tl.float32))
        s, tanh = scores(
            dots, i[:, None], j[None, :], bias, bias_i, bias_j, mask, mask_i, mask_j, slope, scale, softcap, left,
            right, offset, rows, columns, BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
        )  # fmt: skip
        weights = tl.exp2(s - base[:, None])
        v_at = v + j[None, :] * v_j + d[:, None] * v_d
        value = tl.load(v_at, mask=(j[None, :] < columns) & (d[:, None] < value_dim), other=0.0)
        dweights = product(upstream, value, tl.zeros([BLOCK_I, BLOCK_J], tl.float32))
        if DROPOUT:
            kept = is_kept(i[:, None], j[None, :], head, rows, columns, dropout_p, seed)
            dweights = tl.where(kept, dweights * factor, 0.0)
        gradient = weights * (dweights - shift[:, None])
        if dscores is not None:
            dscores_at = dscores + i[:, None].to(tl.int64) * columns + j[None, :]
            tl.store(dscores_at, gradient, mask=(i[:, None] < rows) & (j[None, :] < columns))
        if SOFTCAP:
            gradient *= 1.0 - tanh * tanh
        sums = add_weighted(gradient, key, sums)
    store(dq + b * dq_b + h * dq_h + i[:, None] * dq_i + d[None, :] * dq_d, sums * scale,
          (i[:, None] < rows) & (d[None, :] < head_dim))  # fmt: skip
