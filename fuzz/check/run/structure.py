"""The tensors within results, arguments and attributes, and the form that holds them."""

from typing import Any

import torch
from torch import Tensor, nn


def flatten(result: Any, around: tuple[int, ...] = ()) -> tuple[str, list[Tensor]]:
    """The form of a result, and the tensors in it, in order. `around`: ids of the objects that hold it."""
    if id(result) in around:
        return "...", []
    around = (*around, id(result))
    if isinstance(result, Tensor):
        # A returned fake tensor is no valid result, so it appears by its type.
        return "tensor" if type(result) in (Tensor, nn.Parameter) else type(result).__name__, [result]
    if isinstance(result, (list, tuple)):
        parts = [flatten(item, around) for item in result]
        return f"({', '.join(part[0] for part in parts)})", [leaf for part in parts for leaf in part[1]]
    if isinstance(result, dict):
        parts = [flatten(item, around) for item in result.values()]
        keys = [f"{key}: {part[0]}" for key, part in zip(result, parts, strict=True)]
        return f"{{{', '.join(keys)}}}", [leaf for part in parts for leaf in part[1]]
    if isinstance(result, float):
        return "number", [torch.tensor(result, dtype=torch.float64)]
    if type(result).__module__ == "numpy":
        return flatten(torch.as_tensor(result), around)
    if isinstance(result, (type, nn.Module, torch.dtype, torch.device)) or callable(result):
        return getattr(result, "__qualname__", str(result)) if callable(result) else str(result), []
    slots = [name for kind in type(result).__mro__ for name in getattr(kind, "__slots__", ())]
    if hasattr(result, "__dict__") or slots:
        # Such as a cache of keys and values, whose text would name its address.
        names = {name: getattr(result, name) for name in slots if hasattr(result, name)} | getattr(
            result, "__dict__", {}
        )
        form, tensors = flatten(names, around)
        return f"{type(result).__name__}{form}", tensors
    return repr(result), []


def is_state(value: Any) -> bool:
    """Whether a plain attribute or an argument is an object that may hold tensors, such as a cache."""
    kind = type(value)
    if isinstance(value, (Tensor, nn.Module, type)) or callable(value) or "config" in kind.__name__.lower():
        return False
    return isinstance(value, (list, tuple, dict)) or kind.__module__.partition(".")[0] not in (
        "builtins",
        "torch",
        "enum",
    )
