"""Names the arguments of a call of torch, by torch's own schemas or by the signature of a Python function."""

import functools
import inspect
import itertools
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Signature
from typing import Any

import torch
from torch import Tensor
from torch._jit_internal import boolean_dispatched
from torch.fx.operator_schemas import create_type_hint, get_signature_for_torch_op, type_matches

_SYNONYMS = {"self": "input", "axis": "dim", "keepdims": "keepdim"}
"""Names of parameters that torch takes for others."""
_HARMLESS = frozenset(
    (
        *("_stacklevel", "out", "requires_grad", "device", "layout", "pin_memory", "non_blocking", "copy"),
        *("memory_format", "return_indices"),
    )
)
"""Parameters whose value changes no result, or whose results tell it; schemas lack the first three."""
_PLACES = ("input", "other")
"""Names of the first arguments of a function without a schema, such as `Tensor.__and__`."""


def name_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments by name, in the order of the signature, and its defaults by name; both without `_HARMLESS`.

    If a function has no signature, or none fits, the names are `_PLACES`, and then places.
    """
    named = {_SYNONYMS.get(name, name): value for name, value in kwargs.items() if name not in _HARMLESS}
    lead = isinstance(next(iter(args), None), Tensor)
    found = []
    for values in (args, (*args[:lead], args[lead:])):  # x.view((2, 3)), and x.view(2, 3)
        for signature in _list_signatures(function):
            with suppress(TypeError):
                found.append((signature, signature.bind(*values, **named).arguments))
    if not found:
        names = itertools.chain(_PLACES, map(str, itertools.count(len(_PLACES))))
        return {**dict(zip(names, args, strict=False)), **named}, {}
    signature, given = next((pair for pair in found if _fits(*pair)), found[0])
    empty, parameters = inspect.Parameter.empty, signature.parameters.values()
    return given, {one.name: one.default for one in parameters if one.default is not empty}


@functools.cache
def _list_signatures(function: Callable[..., Any]) -> Sequence[Signature]:
    """Of a Python function its own; else those of the schemas of its name."""
    signatures: Sequence[Signature] = ()
    if isinstance(function, types.FunctionType):
        # F.max_pool2d and its like choose between two functions.
        own = boolean_dispatched[function]["if_true"] if function in boolean_dispatched else function
        with suppress(ValueError):  # Tensor.__pow__ wraps a function of C
            signatures = [inspect.signature(own)]
    if not signatures:
        packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
        with suppress(NameError):  # torch.fx does not know the type Stream
            signatures = (packet and get_signature_for_torch_op(packet)) or ()
    is_method = isinstance(function, types.MethodDescriptorType)
    return [
        signature.replace(
            parameters=sorted(
                (one.replace(name=_SYNONYMS.get(one.name, one.name)) for one in signature.parameters.values()),
                key=lambda one: is_method and one.name != "input",  # x.where(condition, other)
            )
        )
        for signature in signatures
    ]


def _fits(signature: Signature, given: Mapping[str, Any]) -> bool:
    def tell(value: Any) -> object:
        return create_type_hint(tuple(map(type, value))) if isinstance(value, (list, tuple)) else type(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about types within types
        return all(type_matches(signature.parameters[name].annotation, tell(value)) for name, value in given.items())
