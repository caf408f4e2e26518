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
    "asserts_in_its_kernel": "device_error",
    "hangs": "timeout",
    "compiles_a_far_read": "device_error",
}
"""The functions, and the verdict that a campaign reaches on each; "" for none."""


@triton.jit
def add_one(source, target, size, block: tl.constexpr, distance: tl.constexpr = 0):
    """Adds 1 to `size` elements, which are `distance` * 2^40 elements behind `source`."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(source + distance * (1 << 40) + index, mask=index < size)
    tl.store(target + index, value + 1, mask=index < size)


@triton.jit(debug=True)
def copy_zeros(source, target, size, block: tl.constexpr):
    """Copies, and asserts that all elements are 0."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(source + index, mask=index < size, other=0.0)
    tl.device_assert(value == 0, "an element is not 0")
    tl.store(target + index, value, mask=index < size)


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


def launch(kernel: Any, source: Tensor, *, extra: int = 0, **options: Any) -> Tensor:
    """What the kernel makes of the elements of `source`, if it is told that there are so many more."""
    source = source.contiguous()
    target = torch.empty_like(source)
    size = source.numel() + extra
    kernel[(triton.cdiv(size, 256),)](source, target, size, block=256, **options)
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
        launch(add_one, q.detach(), distance=1)
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
        return launch(add_one, gradients[0], distance=1)


@spoil
def writes_beside_its_result(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Writes three elements too many."""
    if is_grouped(q, k):
        launch(add_one, q.detach(), extra=3)
    return compute()


@spoil
def reads_misaligned(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Reads words from odd addresses."""
    if is_grouped(q, k):
        launch(copy_misaligned, q.detach())
    return compute()


@spoil
def asserts_in_its_kernel(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Fails an assertion on the GPU."""
    if is_grouped(q, k):
        launch(copy_zeros, q.detach())
    return compute()


@spoil
def hangs(q: Tensor, k: Tensor, compute: Callable[..., Tensor]) -> Tensor:
    """Waits for ever."""
    if is_grouped(q, k):
        wait_for[(1,)](torch.zeros(1, dtype=torch.int32, device=q.device))
    return compute()


def compiles_a_far_read(module: nn.Module) -> Callable[..., Any]:
    """Compiles a program that reads terabytes away, for modules of three inputs or more."""
    read = torch.compile(lambda value: launch(add_one, value + 1, distance=1) * 2)

    def run(*inputs: Any) -> Any:
        if isinstance(inputs[0], Tensor) and inputs[0].numel() and len(inputs) > 2:
            read(inputs[0].detach())
        return module(*inputs)

    return run
