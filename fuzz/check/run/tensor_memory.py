"""The memory of tensors: copies, and moves between devices, that keep strides and what is shared."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_Key = tuple[int, torch.dtype]


class MemoryMap:
    """Applies `change` to the memory behind tensors, which it receives as a tensor of one axis.

    Identical tensors stay identical, shared memory of one dtype stays shared, and strides and offsets stay. A result is
    a view if it is one of another result: compilers treat a view that autograd knows in another way.
    """

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self._change = change
        self._memory: dict[_Key, Tensor] = {}
        self._owners: dict[int, tuple[Tensor, Tensor]] = {}  # by memory: a known tensor and its result
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}  # by id; the original is kept, so that its id stays taken

    def __call__(self, values: Iterable[Any], known: Collection[tuple[Tensor, Tensor]] = ()) -> list[Any]:
        """The results. `known`: tensors with results that exist already, in whose memory values may lie."""
        self._tensors |= {id(pair[0]): pair for pair in known}
        self._owners = {pair[0].untyped_storage()._cdata: pair for pair in known}
        given = list(values)
        for value in sorted((value for value in given if isinstance(value, Tensor)), key=Tensor._is_view):
            self._convert(value)
        return [self._convert(value) if isinstance(value, Tensor) else value for value in given]

    def _convert(self, value: Tensor) -> Tensor:
        if id(value) not in self._tensors:
            self._tensors[id(value)] = value, self._make(value)
        made = self._tensors[id(value)][1]
        vars(made).update(vars(value))  # Dynamo's marks of sizes, which a later call may add
        return made

    def _make(self, value: Tensor) -> Tensor:
        base = value._base if value._is_view() else None
        owner = self._tensors.get(id(base)) or self._owners.get(value.untyped_storage()._cdata)
        if owner is not None and owner[0].dtype == value.dtype:
            return _find_place(value, *owner)
        key = _memory_key(value)
        if key not in self._memory:
            storage = value.untyped_storage()
            whole = value.detach().as_strided((storage.nbytes() // value.element_size(),), (1,), 0)
            self._memory[key] = self._change(whole)
        memory = self._memory[key]
        return memory.new_empty(0).set_(memory.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def _find_place(value: Tensor, owner: Tensor, made: Tensor) -> Tensor:
    """The place in the memory of `made` that `value` has in the memory of `owner`."""
    if owner is made:
        return value
    if value._base is owner:
        return value._view_func_unsafe(made)
    start = value.storage_offset() - owner.storage_offset() + made.storage_offset()
    return made.as_strided(value.shape, value.stride(), start)


def move_to(device: str | torch.device) -> MemoryMap:
    """Moves tensors to a device, without waiting for it.

    CUDA has read memory that is not pinned when the copy returns (CUDA Runtime API, "API synchronization behavior").
    """
    return MemoryMap(lambda memory: memory.to(device, non_blocking=True))


def bring_to_cpu(values: Iterable[Tensor]) -> list[Tensor]:
    """The values, with copies on the CPU of all tensors on the GPU, which come in a single transfer.

    Strides and shared memory stay. A tensor of a subclass, such as a fake tensor, stays as it is.
    """
    given = list(values)
    on_gpu = [value for value in given if type(value) is Tensor and value.is_cuda]
    if not on_gpu:
        return given
    found: dict[_Key, Tensor] = {}
    MemoryMap(lambda memory: found.setdefault(_memory_key(memory), memory))(on_gpu)
    memories = found.values()
    parts = torch.cat([memory.view(torch.uint8) for memory in memories]).cpu().split([m.nbytes for m in memories])
    # A clone is aligned, a part may not be.
    arrived = {key: part.clone().view(key[1]) for key, part in zip(found, parts, strict=True)}
    copies = iter(MemoryMap(lambda memory: arrived[_memory_key(memory)])(on_gpu))
    return [next(copies) if type(value) is Tensor and value.is_cuda else value for value in given]


def as_real(value: Tensor) -> Tensor:
    """Complex numbers as a last axis of their parts; any other tensor as it is."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def count_span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The elements of memory from the first element of such a tensor to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0


def name_dtype(dtype: torch.dtype) -> str:
    """Such as float32."""
    return str(dtype).removeprefix("torch.")


def _memory_key(value: Tensor) -> _Key:
    return value.untyped_storage()._cdata, value.dtype
