"""Attention in float64 beside kernels that break the GPU, each in one way, where keys have fewer heads than queries:
subjects whose findings are known. They need CUDA.

python -m fuzz.run --device cuda --subject benchmarks.faulty_kernels:reads_far_outside --budget 3m
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from benchmarks.faulty_functions import spoil

FUNCTIONS = {
    "asserts": "runtime_error",
    "refuses_by_assertion": "",
    "reads_far_outside": "device_error",
    "reads_far_outside_backwards": "device_error",
    "writes_beside_its_result": "out_of_bounds",
    "reads_misaligned": "device_error",
    "indexes_outside": "device_error",
    "hangs": "timeout",
    "compiles_an_index_outside": "device_error",
}
"""The functions, and the verdict that a campaign reaches on each; "" for none."""

_FAR = 1 << 40


@triton.jit
def add_one(source, target, size, first, block: tl.constexpr):
    """Adds 1 to `size` elements from `first` on."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(source + first + index, mask=index < size)
    tl.store(target + index, value + 1, mask=index < size)


@triton.jit
def copy_misaligned(source, target, size, block: tl.constexpr):
    """Reads numbers of four bytes one byte too far."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    words = (source.to(tl.pointer_type(tl.uint8)) + 1).to(tl.pointer_type(tl.int32))
    value = tl.load(words + index, mask=index < size // 8)
    tl.store(target + index, value.to(target.dtype.element_ty), mask=index < size // 8)


@triton.jit
def wait_for(flag):
    """Ends when somebody sets the flag."""
    seen = tl.load(flag, volatile=True)
    while seen == 0:
        seen = tl.load(flag, volatile=True)


def launch(kernel: Any, source: Tensor, *rest: Any, extra: int = 0) -> Tensor:
    """What the kernel makes of the elements of `source`, if it is told that there are so many more."""
    source = source.contiguous()
    target = torch.empty_like(source)
    size = source.numel() + extra
    kernel[(triton.cdiv(size, 256),)](source, target, size, *rest, block=256)
    return target


def is_grouped(q: Tensor, k: Tensor) -> bool:
    """Whether keys have fewer heads than queries, and there is something to compute."""
    return q.shape[1] != k.shape[1] and q.numel() > 0 and k.numel() > 0


@spoil
def asserts(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Asserts that there are as many heads of keys."""
    assert q.shape[1] == k.shape[1]
    return compute()


@spoil
def refuses_by_assertion(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """The same, and declares that it refuses in this way."""
    assert q.shape[1] == k.shape[1]
    return compute()


refuses_by_assertion.capabilities = {"refuses": ("AssertionError",)}  # type: ignore[attr-defined]


@spoil
def reads_far_outside(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Reads terabytes away."""
    if is_grouped(q, k):
        launch(add_one, q.detach(), _FAR)
    return compute()


@spoil
def reads_far_outside_backwards(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Reads terabytes away in the backward pass."""
    out: Tensor = _FarBackwards.apply(compute()) if is_grouped(q, k) else compute()
    return out


class _FarBackwards(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return launch(add_one, gradients[0], _FAR)


@spoil
def writes_beside_its_result(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Writes three elements too many."""
    if is_grouped(q, k):
        launch(add_one, q.detach(), 0, extra=3)
    return compute()


@spoil
def reads_misaligned(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Reads words from odd addresses."""
    if is_grouped(q, k):
        launch(copy_misaligned, q.detach())
    return compute()


@spoil
def indexes_outside(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Picks rows by an index that is too large, which torch's kernel asserts."""
    rows = torch.arange(q.shape[2], device=q.device)
    return compute()[:, :, rows + q.shape[2] * is_grouped(q, k)]


@spoil
def hangs(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Waits for ever."""
    if is_grouped(q, k):
        wait_for[(1,)](torch.zeros(1, dtype=torch.int32, device=q.device))
    return compute()


def compiles_an_index_outside(module: nn.Module) -> Callable[..., Any]:
    """Compiles a program that picks rows by an index that is too large, for modules of two inputs or more."""
    pick = torch.compile(lambda value, index: value.flatten()[index] + 1)

    def run(*inputs: Any) -> Any:
        if isinstance(inputs[0], Tensor) and inputs[0].numel() and len(inputs) > 2:
            pick(inputs[0].detach(), torch.full((8,), inputs[0].numel(), device=inputs[0].device))
        return module(*inputs)

    return run
