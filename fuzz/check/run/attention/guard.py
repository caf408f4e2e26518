"""Guarded memory: buffers with a border on both sides. Borders and unwritten elements hold a known bit pattern.

Arguments and allocations of a function are such buffers. The pattern is a signalling NaN. Arithmetic on it gives a
quiet NaN. So a border changes even if the number written into it was computed from the border.
"""

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuzz.check.run.tensor_memory import bring_to_cpu, count_span
from fuzz.protocol.failures import Write

GUARDED = ("arguments", "allocations")
"""Parts that can be guarded: the arguments of a function with their gradients, and its allocations."""

#: Elements of a border: kernels overrun by blocks of rows.
BORDER = 1 << 14

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATTERN = {
    torch.float64: 0x7FF5A5A5A5A5A5A5,
    torch.float32: 0x7FA5A5A5,
    torch.bfloat16: 0x7FA5,
    torch.float16: 0x7DA5,
    torch.bool: 0x5A,  # which no store of True or False leaves
    torch.uint8: 0xA5,
    torch.int16: 0x5A5A,
    torch.int32: 0x5A5A5A5A,
    torch.int64: 0x5A5A5A5A5A5A5A5A,
}
_UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_FILLED = {form.format(name) for name in ("zeros", "ones", "full") for form in ("{}", "{}_like", "new_{}")}
_OURS = ("case.", "triton.", "fuzz.check.")


@dataclass
class _Buffer:
    name: str
    whole: Tensor  # as integers, with borders
    value: Tensor
    lead: int  # elements before `value`
    span: int  # elements of memory of `value`
    before: Tensor | None  # a copy of `whole` for a buffer that must not change

    def mark_forbidden(self) -> tuple[Tensor, Tensor]:
        """Masks of `whole`: the elements that were written and must not be, and those of `value`."""
        changed = self.whole != (_PATTERN[self.value.dtype] if self.before is None else self.before)
        own = torch.zeros_like(changed)
        if self.value.numel():
            own.as_strided(self.value.shape, self.value.stride(), self.lead).fill_(True)
        return changed if self.before is not None else changed & ~own, own

    def damage(self) -> Iterator[Write]:
        """Forbidden writes to borders, between rows, and to values that must not change."""
        changed, own = self.mark_forbidden()
        end = self.lead + self.span
        places = {"before": changed[: self.lead], "after": changed[end:], "itself": changed & own}
        places["between"] = (changed & ~own)[self.lead : end]
        counts = {place: int(part.sum()) for place, part in places.items()}
        return (Write(self.name, place, count) for place, count in counts.items() if count)


class Guard:
    """Guards the given parts. While entered, it guards allocations, except those by a case's own text.

    Functions such as `torch.empty` are replaced in torch's namespace, because a TorchDispatchMode sees neither the
    bodies of custom operations nor backward passes.
    """

    def __init__(self, parts: tuple[str, ...] = GUARDED) -> None:
        self._arguments, self._allocations = (name in parts for name in GUARDED)
        self._buffers: list[_Buffer] = []
        self._patches = ExitStack()

    def __enter__(self) -> None:
        for home in (torch, torch.Tensor) if self._allocations else ():
            for name in sorted(_UNWRITTEN | _FILLED):
                original = getattr(home, name, None)
                if original is not None:
                    self._patches.enter_context(mock.patch.object(home, name, self._wrap_allocator(name, original)))

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def protect_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self.protect_argument(name, value) if isinstance(value, Tensor) else value
            for name, value in arguments.items()
        }

    def protect_argument(self, name: str, value: Tensor) -> Tensor:
        """A copy of `value` with its strides, in guarded memory that must not change. Gradients flow through it."""
        if value.requires_grad and torch.is_grad_enabled():
            return _GuardedArgument.apply(value, self, name)
        return self._copy_guarded(name, value)

    def protect_result(self, value: Tensor) -> Tensor:
        """A copy of a result, whose incoming gradient is in guarded memory."""
        fresh = value.clone(memory_format=torch.contiguous_format)
        if fresh.requires_grad:
            fresh.register_hook(lambda gradient: self._copy_guarded("dout", gradient))
        return fresh

    def damage(self) -> tuple[Write, ...]:
        if not any(bring_to_cpu(buffer.mark_forbidden()[0].any() for buffer in self._buffers)):
            return ()
        return tuple(write for buffer in self._buffers for write in buffer.damage())

    def _wrap_allocator(self, name: str, original: Any) -> Any:
        def allocate(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if torch.compiler.is_compiling() or type(made) is not Tensor or kwargs.get("out") is not None:
                return made
            place = _caller()
            if place is None or not _guardable(made):
                return made
            guarded = self._new(f"torch.{name} at {place}", made).value
            if name not in _UNWRITTEN:
                _write(guarded, made)
            return guarded.requires_grad_() if made.requires_grad else guarded

        return functools.wraps(original)(allocate)

    def _copy_guarded(self, name: str, value: Tensor) -> Tensor:
        value = value.detach()
        if not self._arguments or not _guardable(value):
            return value
        made = self._new(name, value)
        _write(made.value, value)
        made.before = made.whole.clone()
        return made.value

    def _new(self, name: str, like: Tensor) -> _Buffer:
        span = count_span(like.shape, like.stride())
        lead = BORDER + int(like.storage_offset()) % 64  # keeps the alignment
        integer = _INTEGER[like.element_size()]
        whole = torch.full((lead + span + BORDER,), _PATTERN[like.dtype], dtype=integer, device=like.device)
        value = torch.empty(0, dtype=like.dtype, device=like.device)
        value.set_(whole.untyped_storage(), lead, like.shape, like.stride())
        buffer = _Buffer(name, whole, value, lead, span, None)
        self._buffers.append(buffer)
        return buffer


class _GuardedArgument(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: Tensor, guard: Guard, name: str) -> Tensor:
        return guard._copy_guarded(name, value)

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return gradients[0], None, None


def _guardable(value: Tensor) -> bool:
    try:
        value.untyped_storage().data_ptr()
    except RuntimeError:  # Tensors of tracers and transforms have no memory.
        return False
    return value.dtype in _PATTERN and value.layout is torch.strided and value.device.type in ("cpu", "cuda")


def _write(target: Tensor, value: Tensor) -> None:
    """Copies values of equal shape and strides, whose elements may share memory."""
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if size > 1 and stride == 0:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    if not value.numel():
        return
    if _overlaps(value):
        target, value = (
            x.as_strided((count_span(value.shape, value.stride()),), (1,), x.storage_offset()) for x in (target, value)
        )
    target.copy_(value)


def _overlaps(value: Tensor) -> bool:
    reach = 0
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _caller() -> str | None:
    """The line outside of torch that allocates, as file:line; None for a case's own text, Triton and attnfuzz."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}."
        if module.startswith(_OURS):
            return None
        if not module.startswith("torch."):
            return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return None
