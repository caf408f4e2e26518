"""How operations that take functions, such as flex_attention, run under a dispatch mode."""

from typing import Any

from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


def is_higher_order(func: Any) -> bool:
    """Whether a dispatch mode was handed an operation that takes functions."""
    return isinstance(func, HigherOrderOperator)


def in_steps(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation decomposed into plain ones that `mode` sees. Raises NotImplementedError without a definition."""
    definition = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if definition is None:
        raise NotImplementedError(f"{func.name()} has no definition in plain operations")
    with mode:
        return definition(*args, **kwargs)
