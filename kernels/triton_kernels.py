"""The Triton kernels: forward and dq (with the scores' gradient) over blocks of queries, dk and dv over blocks of keys.

No atomics: every element is written once by one program, so a repeat is bitwise equal. Under Triton's interpreter
`tl.dot` of bfloat16 multiplies bit patterns and `.to(tl.bfloat16)` truncates, so operands are widened before every
product and rounded by integer arithmetic. `INTERPRETED` follows TRITON_INTERPRET at import.
"""

import inspect

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


def compile_once(kernel):
    """A kernel with a single compiled form for all options, sizes and strides."""
    return triton.jit(kernel, do_not_specialize=inspect.signature(kernel).parameters.keys() - kernel.__annotations__)


@triton.jit
def round_to(x, DTYPE: tl.constexpr):
    """Round float32 `x` to the precision of DTYPE, to nearest even."""
    if INTERPRETED:
        if DTYPE == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            return tl.where(x != x, x, bits.to(tl.float32, bitcast=True))
        return x.to(DTYPE).to(tl.float32)
    return x.to(DTYPE)


@triton.jit
def product(a, b, accumulator):
    """Gives accumulator + a @ b, accumulated in float32; float32 operands are not rounded to TF32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")
    return tl.dot(a, b, accumulator, input_precision="ieee")


@triton.jit
def add_weighted(weights, x, accumulator):
    """Gives accumulator + weights @ x. The float32 weights are rounded to the dtype of x."""
    return product(round_to(weights, x.dtype), x, accumulator)


@triton.jit
def store(pointers, values, inside):
    """Store float32 `values` in the dtype of the memory, where `inside`."""
    DTYPE: tl.constexpr = pointers.dtype.element_ty
    tl.store(pointers, round_to(values, DTYPE).to(DTYPE), mask=inside)


@triton.jit
def tanh(x):
    """Accurate near 0, where 2 * sigmoid(2x) - 1 cancels, and without overflow for large |x|."""
    square = x * x
    series = x * (
        1.0
        + square
        * (
            -0.3333333333333333
            + square * (0.13333333333333333 + square * (-0.05396825396825397 + square * 0.021869488536155203))
        )
    )
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0, -far, far))


@triton.jit
def scores(
    dots, i, j, bias, bias_i, bias_j, mask, mask_i, mask_j, slope, scale, softcap, left, right, offset, rows, columns,
    BIAS, MASK, ALIBI, SOFTCAP, LEFT, RIGHT,
):  # fmt: skip
    """(log2(e) times the scores of a tile, tanh of the softcap or `dots`) from the products q . k.

    `i` and `j` are the query and key numbers, shaped to broadcast to the tile; `bias` and `mask` point at the head's
    first element. Triton 3.6 fails to compile loads under a condition beside dropout, so that a flag of 0 masks them.
    """
    s = dots * scale
    if SOFTCAP:
        dots = tanh(s / softcap)
        s = softcap * dots
    if ALIBI:
        s -= slope * tl.abs(i + offset - j).to(tl.float32)
    at = bias + i.to(tl.int64) * bias_i + j.to(tl.int64) * bias_j
    s += tl.load(at, mask=(i < rows) & (j < columns * BIAS), other=0.0).to(tl.float32)
    s *= LOG2E
    at = mask + i.to(tl.int64) * mask_i + j.to(tl.int64) * mask_j
    masked = tl.load(at, mask=(i < rows) & (j < columns * MASK), other=1) == 0
    s = tl.where(masked, float("-inf"), s)
    kept = (i < rows) & (j < columns)
    if LEFT:
        kept &= j >= i + offset - left
    if RIGHT:
        kept &= j <= i + offset + right
    return tl.where(kept, s, float("-inf")), dots


@triton.jit
def is_kept(i, j, head, rows, columns, probability, seed):
    """Whether dropout keeps a weight: True with 1 - probability, on CUDA and under the interpreter alike."""
    place = (head.to(tl.int64) * rows + i) * columns + j
    return tl.rand(seed, place) >= probability


def find_interpreter_fault() -> str | None:
    """The reason why Triton's interpreter fails here, or None where it works or is not used.

    Triton 3.6 turns arrays of one element into numbers, which numpy 2.4 refuses.
    """
    if not INTERPRETED.value:
        return None
    out = torch.zeros(1, dtype=torch.int32)
    try:
        count_kernel[(1,)](out, 3)
    except triton.runtime.errors.InterpreterError as error:
        return f"the interpreter of Triton {triton.__version__} does not run here: {' '.join(str(error).split())}"
    return None


@triton.jit
def count_kernel(out, n):
    """Store the last number of a loop whose bound is an argument."""
    for i in range(n):
        tl.store(out, i)


@compile_once
def forward_kernel(
    q, k, v, bias, mask, alibi, sinks, out, lse,
    q_b, q_h, q_i, q_d, k_b, k_h, k_j, k_d, v_b, v_h, v_j, v_d, out_b, out_h, out_i, out_d,
    bias_b, bias_h, bias_i, bias_j, mask_b, mask_h, mask_i, mask_j,
    heads, group, rows, columns, head_dim, value_dim, scale, softcap, left, right, offset, dropout_p, factor, seed,
    BIAS, MASK, ALIBI, SINKS, SOFTCAP, LEFT, RIGHT,
    DROPOUT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """`out` [batch, heads, rows, value_dim] and lse [batch * heads, rows], natural log, float32, by an online softmax
    over blocks of keys. `factor` multiplies the sums: 1 / (1 - dropout_p). See kernels.attention."""
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
    """`dq` of one block of queries of one head; where `dscores` [batch * heads, rows, columns] is given (zeros,
    float32), the gradient of the biased scores too."""
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
