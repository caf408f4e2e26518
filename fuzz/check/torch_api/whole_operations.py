"""Operations on DTensors that run on whole tensors, which shows whether their sharding is at fault."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fuzz.check.torch_api.torch_internals import intercept
from fuzz.protocol import StepsTaken

REDISTRIBUTE = "DTensor.redistribute"
_redistribute = DTensor.redistribute


class WholeOperations(TorchDispatchMode):
    """Runs operations on whole tensors: arguments are gathered first, and written arguments are split again.

    A redistribution from shards to other shards is an operation, which leaves a whole tensor whole.

    limit: how many operations are sharded before the others run whole, or the name of the operation that runs whole
    """

    def __init__(self, limit: str) -> None:
        super().__init__()
        self._limit = limit
        self.taken: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(leaf, DTensor) for leaf in tree_leaves((args, kwargs))):
            name = f"{func.namespace}.{func.overloadpacket.__name__}"
            if self._is_whole(name):
                return _run_whole(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_whole(self, name: str) -> bool:
        """Whether an operation runs on whole tensors; else it is taken."""
        is_whole = len(self.taken) >= int(self._limit) if self._limit.isdecimal() else name == self._limit
        self.taken += [] if is_whole else [name]
        return is_whole

    def redistribute(
        self,
        redistribute: Callable[..., DTensor],
        value: DTensor,
        device_mesh: Any = None,
        placements: Any = None,
        **options: Any,
    ) -> DTensor:
        """`DTensor.redistribute`, as an operation."""
        among_shards = all(any(not one.is_replicate() for one in of) for of in (value.placements, placements or ()))
        if among_shards and self._is_whole(REDISTRIBUTE):
            return _replicate(value)
        return redistribute(value, device_mesh, placements, **options)


def _run_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        whole, named = tree_map(_replicate, (args, kwargs))
        result = func(*whole, **named)
        written = dict[int, Any]()  # by the id of the whole tensor
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                parts, values = (
                    tree_leaves(given[at] if at < len(args) else others.get(argument.name))
                    for given, others in ((args, kwargs), (whole, named))
                )
                for part, value in zip(parts, values, strict=True):
                    if isinstance(part, DTensor):
                        part.to_local().copy_(_redistribute(value, part.device_mesh, part.placements).to_local())
                    written[id(value)] = part
    return tree_map(lambda value: written.get(id(value), value), result)


def _replicate(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    return _redistribute(value, value.device_mesh, [Replicate()] * value.device_mesh.ndim)


@contextmanager
def limit_sharding(limit: str, record: Callable[[StepsTaken], None]) -> Iterator[None]:
    """While entered, `WholeOperations`. On exit `record` is called with the operations that were sharded."""
    mode = WholeOperations(limit)
    try:
        with mode, intercept("torch.distributed.tensor", REDISTRIBUTE, mode.redistribute):
            yield
    finally:
        record(StepsTaken(len(mode.taken), mode.taken[-1] if mode.taken else ""))
