"""Whether Triton's interpreter, the kernels' way to run on CPU, works in this environment."""

import torch
import triton
import triton.language as tl

from kernels.tiles import INTERPRETED


def refusal() -> str | None:
    """Why it does not, in one line; None where it does or is not used.

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
