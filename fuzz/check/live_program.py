"""A user's module in place of the text of a case, with its own parameters, buffers, arguments and modes."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from fuzz.check.program import Compile, Program, execute, flatten, same_numbers
from fuzz.check.tensor_memory import MemoryMap

_RATES = "drop"
"""Rates of dropout, of dropped paths and of dropped layers have this in the names of their attributes or classes."""
_PLAIN = (bool, int, float, str, type(None))


class LiveModule(nn.Module):
    """A user's module that is called with the leaves of its arguments. Its parts keep their own modes.

    form: of the arguments, as pytree has it
    without_gradient: numbers of the leaves that get no gradient
    autocast: the dtype of the autocast around each call; "" for none
    watched: paths of submodules whose first results in a call are returned too, in the order in which they end
    asked: the dtypes whose limits the module reads, in order; set by runs in its own precision
    """

    def __init__(
        self,
        module: nn.Module,
        form: Any,
        *,
        without_gradient: Sequence[int] = (),
        autocast: str = "",
        device: str = "cpu",
        watched: Sequence[str] = (),
        asked: list[torch.dtype],
    ) -> None:
        super().__init__()
        self.module, self.without_gradient = module, without_gradient
        self._form, self._device, self._autocast = form, device, autocast
        self._asked, self._is_exact = asked, False
        self._seen: dict[str, Any] = {}
        self._watched = watched
        for path in watched:
            module.get_submodule(path).register_forward_hook(self._watch(path))

    def forward(self, *leaves: Any) -> Any:
        limits = _replay_limits(self._asked) if self._is_exact else _record_limits(self._asked)
        with limits:
            return self._run(self.module, leaves)

    def call_through(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, made from the user's module, called as this module is."""
        return lambda *leaves: self._run(compiled, leaves)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """By their names in the user's module."""
        return self.module.named_parameters(*args, **options)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        """By their names in the user's module."""
        return self.module.named_buffers(*args, **options)

    def train(self, _mode: bool = True) -> "LiveModule":
        return self

    def double(self) -> "LiveModule":
        """In float64 from now on. The limits of dtypes that the module reads stay those of its own precision."""
        self._is_exact = True
        return super().double()

    def _run(self, call: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        args, kwargs = _pytree.tree_unflatten(list(leaves), self._form)
        self._seen.clear()
        dtype = getattr(torch, self._autocast) if self._autocast else None
        with torch.autocast(self._device, dtype=dtype) if dtype else nullcontext():
            result = call(*args, **kwargs)
        if not self._watched:
            return result
        return _pytree.tree_map_only(Tensor, Tensor.detach, dict(self._seen)), result

    def _watch(self, path: str) -> Callable[..., None]:
        seen = self._seen

        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            if path not in seen:
                seen[path] = output

        return note


class LiveProgram(Program):
    """A user's module and its arguments as a program. Every run begins with copies of both.

    drops: whether rates of dropout stay as they are; if not, all are 0
    is_training: gradients are computed, of the module's own parameters and of arguments that require them
    Raises exceptions of copying.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        *,
        is_training: bool,
        device: str,
        autocast: str = "",
        drops: bool = True,
        watched: Sequence[str] = (),
    ) -> None:
        self.device, self.filename, self.is_training = device, "<module>", is_training
        self._origin, self._given = module, arguments
        self._autocast, self._drops, self._watched = autocast, drops, watched
        self._asked: list[torch.dtype] = []
        leaves, self._form = _pytree.tree_flatten(arguments)
        self._without_gradient = [
            index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and not leaf.requires_grad
        ]

    def module(self, training: bool) -> nn.Module:  # noqa: ARG002 - its parts have their own modes
        """A fresh copy of the user's module."""
        module = copy.deepcopy(self._origin)
        if not self._drops:
            stop_dropout(module)
        return LiveModule(
            module,
            self._form,
            without_gradient=self._without_gradient,
            autocast=self._autocast,
            device=self.device,
            watched=self._watched,
            asked=self._asked,
        )

    def inputs(self) -> list[Any]:
        """Fresh copies of the leaves of the arguments."""
        leaves: list[Any] = _pytree.tree_leaves(copy_arguments(self._given))
        return leaves

    @property
    def is_sequence(self) -> bool:
        return False

    def calls(self, module: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterable[list[Any]]:  # noqa: ARG002 - as Program
        return [MemoryMap(change)(self.inputs()) if change else self.inputs()]

    def compile(self, compile_module: Compile, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        assert isinstance(module, LiveModule)
        return module.call_through(compile_module(module.module, dynamic))

    @cached_property
    def is_random(self) -> bool:
        """Whether eager's results depend on the seed."""
        module = self.module(self.is_training)
        runs = [execute(module, module, self.calls(module), training=False, seed=seed).values for seed in (0, 1)]
        return any(not same_numbers(value, runs[1][name]) for name, value in runs[0].items())

    def name_outputs(self) -> list[str]:
        """The watched submodule whose result an output holds, for each output in order. The module's own come after."""
        module = self.module(self.is_training)
        with torch.no_grad():
            result = module(*self.inputs())
        seen: dict[str, Any] = result[0] if self._watched else {}
        return [path for path, value in seen.items() for _ in flatten(value)[1]]

    def close(self) -> None:
        pass


def stop_dropout(module: nn.Module) -> None:
    """Set all rates of dropout of a module and of its configuration to 0."""
    for part in module.modules():
        for holder in (part, *(value for value in vars(part).values() if _is_configuration(value))):
            for name in list_rates(holder):
                setattr(holder, name, 0.0)


def has_dropout(module: nn.Module) -> bool:
    """Whether a part in training has a rate of dropout above 0."""
    parts = [part for part in module.modules() if part.training]
    return any(
        list_rates(holder)
        for part in parts
        for holder in (part, *(value for value in vars(part).values() if _is_configuration(value)))
    )


def list_rates(holder: Any) -> list[str]:
    """The attributes that hold a rate of dropout above 0."""
    return [
        name
        for name, value in vars(holder).items()
        if isinstance(value, float) and 0 < value <= 1 and _RATES in f"{type(holder).__name__}.{name}".lower()
    ]


def _is_configuration(value: Any) -> bool:
    return hasattr(value, "__dict__") and "config" in type(value).__name__.lower()


def copy_arguments(arguments: Any) -> Any:
    """The arguments with copies of their tensors, which keep strides, shared memory and `requires_grad`, and of the
    objects that hold tensors. Raises exceptions of `copy.deepcopy`."""
    leaves, form = _pytree.tree_flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    copies = MemoryMap(torch.clone)([tensor.detach() for tensor in tensors])
    again = iter(made.requires_grad_(old.requires_grad) for made, old in zip(copies, tensors, strict=True))
    memo: dict[int, Any] = {}
    return _pytree.tree_unflatten(
        [
            next(again) if isinstance(leaf, Tensor) else leaf if isinstance(leaf, _PLAIN) else copy.deepcopy(leaf, memo)
            for leaf in leaves
        ],
        form,
    )


@contextmanager
def _record_limits(asked: list[torch.dtype]) -> Iterator[None]:
    """Within it `asked` becomes the list of the dtypes whose limits are read, such as `torch.finfo(x.dtype).min`."""
    asked.clear()

    def read(dtype: torch.dtype | None = None) -> torch.finfo:
        asked.append(dtype or torch.get_default_dtype())
        return finfo(asked[-1])

    finfo = torch.finfo
    with mock.patch.object(torch, "finfo", read):
        yield


@contextmanager
def _replay_limits(asked: Sequence[torch.dtype]) -> Iterator[None]:
    """Within it limits of dtypes are those that the same reads of a recorded run gave.

    A mask that float64's own minimum fills twice is -inf, and its rows are NaN.
    """
    finfo, rest = torch.finfo, iter(asked)

    def read(dtype: torch.dtype | None = None) -> torch.finfo:
        return finfo(next(rest, dtype or torch.float32))

    with mock.patch.object(torch, "finfo", read):
        yield
