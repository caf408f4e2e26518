"""Operations that take functions, such as flex_attention, under a dispatch mode. The only module that touches how they run."""

from typing import Any

from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


def is_higher_order(func: Any) -> bool:
    """Whether a dispatch mode was handed an operation that takes functions."""
    return isinstance(func, HigherOrderOperator)


def in_steps(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation by its definition in plain ones, each of which `mode` sees. Raises NotImplementedError without one."""
    definition = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if definition is None:
        raise NotImplementedError(f"{func.name()} has no definition in plain operations")
    with mode:
        return definition(*args, **kwargs)
