"""Gradients of what a score modification of flex_attention closes over, in eager.

torch.compile passes such tensors to the operation, which knows gradients of its arguments alone. Outside of it torch
compiles flex_attention by itself for that, which workers switch off (fuzz/check/settings.py).
"""

import functools
import types
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn
from torch._C import DispatchKey

from fuzz.check.torch_internals import find


def pass_closures() -> None:
    """From now on, in this process, flex_attention is passed what its score modification closes over."""
    operation = find("torch._higher_order_ops.flex_attention", "flex_attention")
    original = None if operation is None else operation.py_kernels.get(DispatchKey.Autograd)
    if original is None:
        return

    @functools.wraps(original)
    def run(
        q: Any, k: Any, v: Any, score_mod: Any, mask: Any, scale: Any, options: Any, read: Any = (), *of_mask: Any
    ) -> Any:
        tensors, rebuilt = _open(score_mod, {id(value) for value in (q, k, v)})
        if not read and tensors:
            score_mod, read = rebuilt, tuple(tensors)
        return original(q, k, v, score_mod, mask, scale, options, read, *of_mask)

    operation.py_kernels[DispatchKey.Autograd] = run


def _open(function: Any, known: Collection[int]) -> tuple[list[Tensor], Callable[..., Any]]:
    """The tensors with gradients that a function closes over, itself or as attributes of a module, and the function
    that takes them after its arguments. Those with ids in `known` it reads only the sizes of."""

    def is_passed(value: Any) -> bool:
        return isinstance(value, Tensor) and value.requires_grad and id(value) not in known

    cells = getattr(function, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells]
    names = function.__code__.co_names if cells else ()
    attributes = [
        {name: value for name in names if is_passed(value := getattr(module, name, None))}
        if isinstance(module, nn.Module)
        else {}
        for module in held
    ]
    tensors = [value for value in held if is_passed(value)]
    tensors += [value for named in attributes for value in named.values()]

    def call(*arguments: Any) -> Any:
        count = len(arguments) - len(tensors)
        given = iter(arguments[count:])
        contents = [next(given) if is_passed(value) else value for value in held]
        for place, named in enumerate(attributes):
            if named:
                contents[place] = types.SimpleNamespace(**{name: next(given) for name in named})
        closure = tuple(map(types.CellType, contents))
        code = function.__code__
        return types.FunctionType(code, function.__globals__, closure=closure)(*arguments[:count])

    return tensors, call
