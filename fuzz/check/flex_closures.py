"""Gradients of what a score modification of flex_attention closes over, in eager.

torch.compile passes such tensors to the operation, which knows gradients of its arguments alone. Outside of it torch
compiles flex_attention by itself for that, which workers switch off (fuzz/check/settings.py).
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch._C import DispatchKey

from fuzz.check.torch_internals import find, patch


def pass_closures() -> None:
    """From now on, in this process, flex_attention is passed what its score modification closes over."""
    operation: Any = find("torch._higher_order_ops.flex_attention", "flex_attention")
    original = None if operation is None else operation.py_kernels.get(DispatchKey.Autograd)
    if original is None:
        return

    def run(
        q: Any, k: Any, v: Any, score_mod: Any, mask: Any, scale: Any, options: Any, read: Any = (), *of_mask: Any
    ) -> Any:
        tensors, rebuilt = _open(score_mod, {id(value) for value in (q, k, v)})
        if not read and tensors:
            score_mod, read = rebuilt, tensors
        return original(q, k, v, score_mod, mask, scale, options, read, *of_mask)

    operation.py_kernels[DispatchKey.Autograd] = run


def _open(function: Any, known: Collection[int]) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
    """The tensors with gradients that a function closes over, itself or as parameters of a module, and the function
    that takes them after its arguments. Those with ids in `known` it reads only the sizes of."""
    found: list[tuple[Callable[[Any], AbstractContextManager[Any]], Tensor]] = []
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        if isinstance(held, nn.Module):
            read = [(name, held.get_parameter(name)) for name in function.__code__.co_names if name in held._parameters]
            found += [(partial(_put, held, name), value) for name, value in read if value.requires_grad]
        elif isinstance(held, Tensor) and held.requires_grad and id(held) not in known:
            found.append((partial(patch, cell, "cell_contents"), held))

    def call(*arguments: Any) -> Any:
        count = len(arguments) - len(found)
        with ExitStack() as stack:
            for (put, _), value in zip(found, arguments[count:], strict=True):
                stack.enter_context(put(value))
            return function(*arguments[:count])

    return tuple(value for _, value in found), call


def _put(module: nn.Module, name: str, value: Tensor) -> AbstractContextManager[Any]:
    return mock.patch.dict(module._parameters, {name: value})
