"""A user's module in place of the text of a case, with its own parameters, buffers, arguments and modes."""

import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from fuzz.check.run.program import Compile, Program, execute, same_numbers
from fuzz.check.run.structure import flatten, is_state
from fuzz.check.run.tensor_memory import MemoryMap
from fuzz.protocol import Live
from fuzz.protocol.failures import Value

_RATES = "drop"
"""Rates of dropout, of dropped paths and of dropped layers have this in the names of their attributes or classes."""
_OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, type(None))


class DtypeLimits:
    """The dtypes whose limits a module reads, such as `torch.finfo(x.dtype).min`, by the line that reads.

    In float64 a mask that float64's own minimum fills twice is -inf, and its rows are NaN. So the float64 run reads the
    limits of the dtypes that the same lines read before, in the same order.
    """

    def __init__(self) -> None:
        self._read = defaultdict[tuple[str, int], list[torch.dtype]](list)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Within it reads are noted."""
        self._read.clear()

        def note(place: tuple[str, int], dtype: torch.dtype) -> torch.dtype:
            self._read[place].append(dtype)
            return dtype

        with _watch_limits(note):
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Within it the lines that have read limits get the same again."""
        left = {place: iter(dtypes) for place, dtypes in self._read.items()}
        with _watch_limits(lambda place, dtype: next(left.get(place, iter(())), dtype)):
            yield


@contextmanager
def _watch_limits(choose: Callable[[tuple[str, int], torch.dtype], torch.dtype]) -> Iterator[None]:
    """Within it `torch.finfo` is about the dtype that `choose` takes for a line, except for lines of torch and fuzz."""
    finfo = torch.finfo

    def read(type: torch.dtype | None = None) -> torch.finfo:  # noqa: A002 - the name that torch gives it
        dtype = type or torch.get_default_dtype()
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__", "").partition(".")[0] in ("torch", "fuzz"):
            return finfo(dtype)
        return finfo(choose((caller.f_code.co_filename, caller.f_lineno), dtype))

    with mock.patch.object(torch, "finfo", read):
        yield


class LiveModule(nn.Module):
    """A user's module that is called with the leaves of its arguments. Its parts keep their own modes.

    form: of the arguments, as pytree has it
    without_gradient: numbers of the leaves that get no gradient
    autocast: the dtype of the autocast around each call; "" for none
    watched: paths of submodules whose first results in a call are returned too, in the order in which they end
    limits: of dtypes that the module reads; shared by its copies
    """

    def __init__(
        self,
        module: nn.Module,
        form: Any,
        *,
        without_gradient: Sequence[int],
        autocast: str,
        device: str,
        watched: Sequence[str],
        limits: DtypeLimits,
    ) -> None:
        super().__init__()
        self.module, self.without_gradient = module, without_gradient
        self._form, self._device, self._autocast = form, device, autocast
        self._limits, self._is_exact = limits, False
        self._seen: dict[str, Any] = {}
        self._watched = watched
        for path in watched:
            module.get_submodule(path).register_forward_hook(self._watch(path))

    def forward(self, *leaves: Any) -> Any:
        with self._limits.replay() if self._is_exact else self._limits.record():
            return self.run(self.module, leaves)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """By their names in the user's module."""
        return self.module.named_parameters(*args, **options)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        """By their names in the user's module."""
        return self.module.named_buffers(*args, **options)

    def list_held(self, leaves: Sequence[Any]) -> dict[Value, Tensor]:
        """The tensors in objects among the arguments, and in plain attributes of the module, such as caches."""
        holders = {Value("input", index): leaf for index, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        for path, part in self.module.named_modules():
            own = {name: value for name, value in vars(part).items() if name not in _OF_MODULES}
            holders |= {Value("buffer", ".".join(filter(None, (path, name)))): value for name, value in own.items()}
        found = ((name, flatten(value)[1]) for name, value in holders.items() if is_state(value))
        return {
            replace(name, name=f"{name.name}.{number}"): tensor
            for name, tensors in found
            for number, tensor in enumerate(tensors)
        }

    def train(self, _mode: bool = True) -> "LiveModule":
        return self

    def double(self) -> "LiveModule":
        """In float64 from now on. The limits of dtypes that the module reads stay those of its own precision."""
        self._is_exact = True
        for part in self.module.modules():
            own = {name: value for name, value in vars(part).items() if name not in _OF_MODULES}
            held = {name: value for name, value in own.items() if type(value) is Tensor or is_state(value)}
            vars(part).update(copy_arguments(held, lambda memory: memory.double() if _is_lower(memory) else memory))
        return super().double()

    def run(self, call: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The result of `call`, the user's module or made from it, for leaves of arguments."""
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

    live: how it runs; its path is not looked at
    is_training: gradients are computed, of the module's own parameters and of arguments that require them
    Raises exceptions of copying.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        live: Live,
        *,
        is_training: bool,
        device: str,
        autocast: str,
    ) -> None:
        self.device, self.filename, self.is_training = device, "<module>", is_training
        self._origin, self._given = module, arguments
        self._live, self._autocast = live, autocast
        self._limits = DtypeLimits()
        leaves, self._form = _pytree.tree_flatten(arguments)
        self._without_gradient = [
            index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and not leaf.requires_grad
        ]

    def module(self, _training: bool) -> nn.Module:
        """A fresh copy of the user's module, whose parts have their own modes."""
        module = copy.deepcopy(self._origin)
        if self._live.inference:
            module.eval()
        if not self._live.drops:
            stop_dropout(module)
        return LiveModule(
            module,
            self._form,
            without_gradient=self._without_gradient,
            autocast=self._autocast,
            device=self.device,
            watched=self._live.watched,
            limits=self._limits,
        )

    def inputs(self) -> list[Any]:
        """Fresh copies of the leaves of the arguments."""
        leaves: list[Any] = _pytree.tree_leaves(copy_arguments(self._given))
        return leaves

    @property
    def is_sequence(self) -> bool:
        return False

    def calls(self, module: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterable[list[Any]]:
        assert isinstance(module, LiveModule)
        own = pair_tensors(self._origin, module.module)
        copies = copy_arguments(self._given, lambda memory: change(memory.clone()) if change else memory.clone(), own)
        return [_pytree.tree_leaves(copies)]

    def compile(self, compile_module: Compile, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        assert isinstance(module, LiveModule)
        compiled = compile_module(module.module, dynamic)
        return lambda *leaves: module.run(compiled, leaves)

    @cached_property
    def is_random(self) -> bool:
        """Whether eager's results depend on the seed."""
        module = self.module(self.is_training)
        runs = [execute(module, module, self.calls(module), training=False, seed=seed).values for seed in (0, 1)]
        first, second = runs
        return first.keys() != second.keys() or any(not same_numbers(first[name], second[name]) for name in first)

    def name_outputs(self) -> list[str]:
        """The watched submodule whose result an output holds, for each output in order. The module's own come after."""
        module = self.module(self.is_training)
        with torch.no_grad():
            result = module(*next(iter(self.calls(module))))
        seen: dict[str, Any] = result[0] if self._live.watched else {}
        return [path for path, value in seen.items() for _ in flatten(value)[1]]

    def close(self) -> None:
        pass


def _is_lower(memory: Tensor) -> bool:
    return memory.is_floating_point() and memory.dtype != torch.float64


def stop_dropout(module: nn.Module) -> None:
    """Set all rates of dropout of a module and of its configuration to 0."""
    for holder in _list_holders(module.modules()):
        for name in list_rates(holder):
            setattr(holder, name, 0.0)


def has_dropout(module: nn.Module) -> bool:
    """Whether a part in training has a rate of dropout above 0."""
    return any(map(list_rates, _list_holders(part for part in module.modules() if part.training)))


def _list_holders(parts: Iterable[nn.Module]) -> list[Any]:
    """Submodules and their configurations."""
    return [holder for part in parts for holder in (part, *filter(_is_configuration, vars(part).values()))]


def list_rates(holder: Any) -> list[str]:
    """The attributes that hold a rate of dropout above 0: by their own names, or `p`, `rate` and `prob` of a class of
    dropout."""
    is_dropout = _RATES in type(holder).__name__.lower()
    return [
        name
        for name, value in vars(holder).items()
        if isinstance(value, float)
        and 0 < value <= 1
        and "keep" not in name
        and (_RATES in name.lower() or (is_dropout and name in ("p", "rate", "prob")))
    ]


def _is_configuration(value: Any) -> bool:
    return hasattr(value, "__dict__") and "config" in type(value).__name__.lower()


def pair_tensors(origin: nn.Module, made: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The parameters and buffers of a module with those of its copy, which may be the module itself."""
    each = ((*one.parameters(), *one.buffers()) for one in (origin, made))
    return list(zip(*each, strict=True))


def copy_together(module: nn.Module, arguments: Any) -> tuple[nn.Module, Any]:
    """Copies of a module and of its arguments. Tensors that share memory do so in the copies, and views stay views.

    Raises exceptions of `copy.deepcopy`.
    """
    memo: dict[int, Any] = {}
    made = copy.deepcopy(module, memo)
    return made, copy_arguments(arguments, known=pair_tensors(module, made), memo=memo)


def copy_arguments(
    arguments: Any,
    change: Callable[[Tensor], Tensor] = torch.clone,
    known: Collection[tuple[Tensor, Tensor]] = (),
    memo: dict[int, Any] | None = None,
) -> Any:
    """The arguments with copies of their tensors, also of those in objects. Copies keep strides, shared memory and
    `requires_grad`. Raises exceptions of `copy.deepcopy`.

    change: makes the memory behind copies
    known: tensors with their copies, in whose memory arguments may lie
    memo: of `copy.deepcopy`, of objects that are copied already
    """
    tensors = {id(tensor): tensor for tensor in flatten(arguments)[1] if tensor.is_leaf or not tensor.requires_grad}
    tensors |= {id(leaf): leaf for leaf in _pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)}
    copies = MemoryMap(change)(tensors.values(), known)
    memo = dict(memo or {})
    for old, new in zip(tensors.values(), copies, strict=True):
        # A slice of a parameter has the gradient of the parameter.
        is_own = new.is_leaf and not any(old is one for one, _ in known)
        memo[id(old)] = new.requires_grad_(old.requires_grad) if is_own else new
    return _pytree.tree_map(lambda leaf: leaf if isinstance(leaf, _PLAIN) else copy.deepcopy(leaf, memo), arguments)
