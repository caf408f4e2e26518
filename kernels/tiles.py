"""The parts that forward and backward share: products and rounding on any backend, and the scores of a tile.

Under Triton's interpreter `tl.dot` of bfloat16 multiplies bit patterns and `.to(tl.bfloat16)` truncates, so operands
are widened before every product and rounded by integer arithmetic. `INTERPRETED` follows TRITON_INTERPRET at import.
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
    """Whether dropout keeps a weight: with 1 - `probability`, and equally on CUDA and under the interpreter."""
    place = (head.to(tl.int64) * rows + i) * columns + j
    return tl.rand(seed, place) >= probability


def find_interpreter_fault() -> str | None:
    """The reason why Triton's interpreter fails here, or None if it works or is not used.

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
