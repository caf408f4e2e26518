"""The source text of a case as a program: a module, its inputs, and executions of it."""

import ctypes
import functools
import hashlib
import inspect
import itertools
import linecache
import sys
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzz.check.run.structure import flatten, is_state
from fuzz.check.run.tensor_memory import MemoryMap, bring_to_cpu, move_to
from fuzz.check.run.value_files import read_values
from fuzz.check.torch_api.process_state import restore_state
from fuzz.protocol.failures import Value

_serial = itertools.count()

Compile = Callable[[nn.Module, bool | None], Callable[..., Any]]
"""Takes (module, dynamic). Returns a function that is called like the module."""


class Program:
    """The executed source of a case, with `Module`, `inputs` and, for several calls, `calls` (docs/cases.md).

    `given`: names that the source may use. Raises exceptions of the source. Until `close`, tracebacks show the source,
    and it can be imported.
    """

    def __init__(self, source: str, device: str = "cpu", given: dict[str, Any] | None = None) -> None:
        self.device = device
        number = next(_serial)
        self.filename = f"<case {number}>"
        linecache.cache[self.filename] = (len(source), None, source.splitlines(keepends=True), self.filename)
        # The text of a case may change these.
        torch.backends.mha.set_fastpath_enabled(True)
        torch._dynamo.config.capture_scalar_outputs = False
        torch._dynamo.config.skip_nnmodule_hook_guards = True
        # torch.export imports the modules of functions that a program defines.
        self._module = sys.modules[f"case.{number}"] = ModuleType(f"case.{number}")
        self._names: dict[str, Any] = vars(self._module)
        self._names.update({"__file__": self.filename, **(given or {})})
        exec(compile(source, self.filename, "exec"), self._names)
        if "read_values" in self._names:
            self._names["read_values"] = read_values  # the text reads files beside itself, and checks nothing

    def module(self, training: bool) -> nn.Module:
        """A fresh module, always with equal parameters."""
        _seed(0)
        module: nn.Module = self._names["Module"]()
        return module._apply(lambda value: move_to(self.device)([value])[0]).train(training)

    def inputs(self) -> list[Any]:
        """Fresh inputs of the first call, always with equal values, shapes, dtypes and strides."""
        _seed(0)
        return move_to(self.device)(self._names["inputs"]())

    @property
    def is_sequence(self) -> bool:
        return "calls" in self._names

    def calls(self, module: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterable[list[Any]]:
        """The fresh inputs of every call, with `change` applied to their memory.

        A tensor that is passed to several calls is one object. A generator `calls` in the text may change modes, random
        state and the module.
        """
        if not self.is_sequence:
            return [MemoryMap(change)(self.inputs()) if change else self.inputs()]
        return self._generate(module, [move_to(self.device), *([MemoryMap(change)] if change else [])])

    def _generate(self, module: nn.Module, maps: list[MemoryMap]) -> Generator[list[Any]]:
        made = self._names["calls"](module)
        # Python 3.12 closes a generator expression without the generator that it reads, whose modes then stay on.
        with closing(made) if isinstance(made, Generator) else nullcontext():
            for values in made:
                # Slices of the module's tensors stay slices of these.
                own = [(value, value) for value in (*module.parameters(), *module.buffers())]
                inputs = values
                for convert in maps:
                    inputs = convert(inputs, own)
                yield inputs

    def compile(self, compile_module: Compile, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        """A compiled function that is called like `module`, which `module` of this program made."""
        return compile_module(module, dynamic)

    def close(self) -> None:
        linecache.cache.pop(self.filename, None)
        sys.modules.pop(self._module.__name__, None)


Tensors = dict[Value, Tensor]


@dataclass
class Execution:
    """The results of a run. All tensors are detached, and on the CPU: comparing a few numbers on a GPU that processes
    share takes milliseconds."""

    structure: str  # the type that was returned: "(tensor, {key: tensor})"
    outputs: Tensors
    mutated: Tensors = field(default_factory=dict)  # inputs, parameters and buffers that the run wrote to
    gradients: Tensors = field(default_factory=dict)  # gradients that are not None
    cotangents: Tensors = field(default_factory=dict)  # the gradients of the loss for the outputs, by output
    before: Tensors = field(default_factory=dict)  # the content of `mutated` before the call
    shared: dict[Value, Value | None] = field(default_factory=dict)
    """By output, the input, parameter or buffer whose memory it has."""
    devices: dict[Value, str] = field(default_factory=dict)
    """By output, the type of the device where the run left it."""

    @property
    def values(self) -> Tensors:
        """All that is compared."""
        return {**self.outputs, **self.mutated, **self.gradients}

    def merge(self, other: "Execution", keeps: Callable[[Value, Tensor], Tensor]) -> "Execution":
        """This run, with elements of `other` where `keeps(name, value)` is False. Values that `other` lacks are 0."""
        theirs = other.values
        return self._map(
            lambda name, value: torch.where(
                keeps(name, value), value, theirs[name] if name in theirs else torch.zeros_like(value)
            )
        )

    def shift(self, before: "Execution", after: "Execution") -> "Execution":
        """This run, with (`after` - `before`) added to floating values. All three have one form."""
        old, new = before.values, after.values
        return self._map(
            lambda name, value: value + (new[name] - old[name]) if value.is_floating_point() and name in new else value
        )

    def _map(self, change: Callable[[Value, Tensor], Tensor]) -> "Execution":
        outputs, mutated, gradients = (
            {name: change(name, value) for name, value in values.items()}
            for values in (self.outputs, self.mutated, self.gradients)
        )
        return replace(self, outputs=outputs, mutated=mutated, gradients=gradients)


def execute(
    call: Callable[..., Any],
    module: nn.Module,
    calls: Iterable[list[Any]],
    *,
    training: bool,
    cotangents: Tensors | None = None,
    mode: AbstractContextManager[Any] | None = None,
    watched: bool = False,
    seed: int = 0,
) -> Execution:
    """Run `call(*inputs)` for all `inputs` in `calls`, and with `training` the backward pass of each.

    Floating inputs get gradients, except inputs whose names are in `module.without_gradient`. With
    `module.backward_autocast` False, backward passes run outside of the autocast of a call. Gradients of parameters,
    and of tensors passed to several calls, add up. The state of the module is restored. Raises exceptions of the call.

    call: `module`, or a function compiled from it
    cotangents: of an earlier run; None: they are drawn, or expanded from 1 if `module.loss` is "sum". An output of
        another shape gets no gradient
    mode: surrounds forward and backward passes
    watched: restores process-wide state after each call
    """
    module.zero_grad(set_to_none=True)
    _seed(seed)
    state = ModuleState(module)
    done: list[Execution] = []
    on_gpu, is_sequence = torch.cuda.is_initialized(), isinstance(calls, Generator)
    with torch.set_grad_enabled(training), warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        if isinstance(calls, Generator):
            stack.callback(calls.close)
        for number, inputs in enumerate(calls, 1):
            if on_gpu:
                torch.compiler.cudagraph_mark_step_begin()
            with mode or nullcontext(), restore_state() if watched else nullcontext():
                done.append(_execute_call(call, module, inputs, cotangents, number, copies=is_sequence))
            leaves = [*module.parameters(), *filter(torch.is_tensor, inputs)] if is_sequence or on_gpu else []
            for value in leaves:
                # A CUDA graph, or the gradient of the loss, may own the memory. So a later call adds to a copy.
                value.grad = None if value.grad is None else value.grad.clone()
    state.restore()
    module.train(training)
    if on_gpu:
        # Faults of kernels are raised here, and not by the next function that waits for a result.
        torch.cuda.synchronize()
    merged = [{k: v for run in done for k, v in getattr(run, part.name).items()} for part in fields(Execution)[1:]]
    return Execution("; ".join(run.structure for run in done), *merged)


class ModuleState:
    """The parts of a module: parameters, buffers, layers and hooks; the values of its tensors."""

    def __init__(self, module: nn.Module) -> None:
        own = [value for part in module.modules() for value in vars(part).values() if type(value) is Tensor]
        tensors = (*module.parameters(), *module.buffers(), *own)
        self._tensors = [(value, value.detach().clone(), value.requires_grad) for value in tensors]
        self._parts = [(part, dict(vars(part))) for part in module.modules()]
        held = [value for _, names in self._parts for value in names.values()]
        self._contents = [(value, copy(value)) for value in held if isinstance(value, (dict, list))]
        objects = (value for value in held if is_state(value) and not isinstance(value, (dict, list, tuple)))
        self._objects = [(value, deepcopy(vars(value))) for value in objects if hasattr(value, "__dict__")]

    def restore(self) -> None:
        """Put all back. Hooks of tensors are removed."""
        for part, names in self._parts:
            _put_back(vars(part), names)
        for held, was in self._contents:
            if isinstance(held, dict):
                _put_back(held, was)
            elif len(held) != len(was) or any(mine is not other for mine, other in zip(held, was, strict=True)):
                held[:] = was
        for value, names in self._objects:
            vars(value).clear()
            vars(value).update(deepcopy(names))
        pairs = iter(bring_to_cpu(value.detach() for values in self._tensors for value in values[:2]))
        same = [same_bits(now, first) for now, first in zip(pairs, pairs, strict=True)]
        for is_same, (value, first, requires_grad) in zip(same, self._tensors, strict=True):
            for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
                if hooks:
                    hooks.clear()
            if value.grad_fn is None and value.requires_grad != requires_grad:
                value.requires_grad_(requires_grad)
            if not is_same:
                # A buffer that was written with a differentiable value is part of a graph.
                (value.detach_() if value.grad_fn is not None else value.detach()).copy_(first)


def _put_back(names: dict[Any, Any], was: Any) -> None:
    if names.keys() != was.keys() or any(names[key] is not was[key] for key in was):
        names.clear()
        names.update(was)


def _execute_call(
    call: Callable[..., Any],
    module: nn.Module,
    inputs: list[Any],
    cotangents: Tensors | None,
    number: int,
    *,
    copies: bool,
) -> Execution:
    leaves = _leaves(module, inputs) if torch.is_grad_enabled() else {}
    for value in leaves.values() if number == 1 else ():
        value.grad = None
    watched = _WatchedMemory(module, inputs)
    structure, tensors = flatten(call(*inputs))
    outputs = {Value("output", index, call=number): tensor for index, tensor in enumerate(tensors)}
    shared = watched.find_owners(outputs)
    cotangents = _run_backward(module, outputs if leaves else {}, cotangents)
    gradients = {name: value.grad for name, value in leaves.items() if value.grad is not None}
    devices = {name: value.device.type for name, value in outputs.items()}
    with _disable_current_modes():
        outputs, gradients, mutated, before = watched.bring_to_cpu(outputs, gradients)

        def keep(values: Tensors, **form: Any) -> Tensors:
            # A later call, or the restored state of the module, may change their memory.
            kept = MemoryMap(Tensor.clone)(values.values()) if copies or mutated else values.values()
            return {replace(name, call=number, **form): value for name, value in zip(values, kept, strict=True)}

        return Execution(
            structure,
            keep(outputs),
            keep(mutated, is_written=True),
            keep(gradients, is_gradient=True),
            cotangents,
            {replace(name, call=number, is_written=True): before[name] for name in mutated if name in before},
            shared,
            devices,
        )


class _WatchedMemory:
    """The tensors that a call may write to: as they are before it, and what it changes."""

    def __init__(self, module: nn.Module, inputs: list[Any]) -> None:
        self._given = {Value("input", index): value for index, value in enumerate(inputs) if isinstance(value, Tensor)}
        self._given |= {Value("parameter", name): value for name, value in module.named_parameters()}
        self._given |= {Value("buffer", name): value for name, value in module.named_buffers()}
        # Only a user's module has objects that hold tensors.
        list_held: Callable[[list[Any]], Tensors] = getattr(module, "list_held", lambda _: {})
        self._list_held = functools.partial(list_held, inputs)
        self._held = _copy(self._list_held())
        self._before = _copy(self._given)
        self._versions = {name: _count_writes(value) for name, value in self._given.items()}

    def find_owners(self, outputs: Tensors) -> dict[Value, Value | None]:
        """By output that has elements, the tensor whose memory it has."""
        owners = {value.untyped_storage()._cdata: name for name, value in self._given.items()}
        return {name: owners.get(out.untyped_storage()._cdata) for name, out in outputs.items() if out.numel()}

    def bring_to_cpu(self, outputs: Tensors, gradients: Tensors) -> tuple[Tensors, Tensors, Tensors, Tensors]:
        """Outputs, gradients, the tensors that were written to, and these before the call, all on the CPU."""
        groups = self._before, self._given, outputs, gradients
        left = iter(bring_to_cpu(value.detach() for group in groups for value in group.values()))
        before, now, outputs, gradients = ({name: next(left) for name in group} for group in groups)
        # A write can keep the bits in eager and change them under a subject, so version counters count too.
        mutated = {
            name: now[name]
            for name, value in self._given.items()
            if self._versions[name] != _count_writes(value) or not same_bits(now[name], before[name])
        }
        before |= {name: value.cpu() for name, value in self._held.items()}
        held = {name: value.detach().cpu() for name, value in self._list_held().items()}
        mutated |= {
            name: value for name, value in held.items() if name not in self._held or not same_bits(value, before[name])
        }
        return outputs, gradients, mutated, before


def _copy(values: Tensors) -> Tensors:
    return {name: value.detach().clone() for name, value in values.items()}


def _run_backward(module: nn.Module, outputs: Tensors, cotangents: Tensors | None) -> Tensors:
    """Run the backward pass from outputs that require gradients. Returns the cotangents: drawn, if there are none."""
    used = {name: out for name, out in outputs.items() if out.requires_grad}
    if cotangents is None:
        is_sum = getattr(module, "loss", "") == "sum"
        cotangents = {name: _cotangent(index, out, is_sum) for index, (name, out) in enumerate(used.items())}
    used = {name: out for name, out in used.items() if name in cotangents and cotangents[name].shape == out.shape}
    if used:
        gradients = [_fit_gradient(cotangents[name], out) for name, out in used.items()]
        under = getattr(module, "backward_autocast", True)
        with nullcontext() if under else torch.autocast(gradients[0].device.type, enabled=False):
            torch.autograd.backward([*used.values()], gradients)
    return cotangents


def _fit_gradient(cotangent: Tensor, output: Tensor) -> Tensor:
    """A gradient for `output`, with its dtype and on its device."""
    if output.is_cuda:
        cotangent = move_to(output.device)([cotangent])[0]
    return cotangent.to(output.dtype)


def _count_writes(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def same_bits(left: Tensor, right: Tensor) -> bool:
    """As `same_numbers`, but 0.0 and -0.0 differ, as `1 / x` does. Verdicts are about numbers."""
    if not same_numbers(left, right):
        return False
    return not left.is_floating_point() or not ((left.signbit() != right.signbit()) & (left == 0)).any()


def same_numbers(left: Tensor, right: Tensor) -> bool:
    """Whether dtypes, shapes and elements are equal; NaN equals NaN, and 0.0 equals -0.0."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if (is_equal := torch.equal(left, right)) or not left.is_floating_point():
        return is_equal
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def hash_values(run: Execution) -> tuple[str, ...]:
    """Hashes of the values of a run, in their order."""
    return tuple(map(hash_tensor, run.values.values()))


def hash_tensor(value: Tensor) -> str:
    """Equal for the same dtype, shape and bits in the order of elements."""
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    form = f"{flat.dtype} {list(flat.shape)} ".encode()
    return hashlib.sha256(form + (ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"")).hexdigest()[
        :16
    ]


def _seed(seed: int) -> None:
    # Until CUDA is initialised, torch.manual_seed records a stack trace, which takes ten times as long as seeding.
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _leaves(module: nn.Module, inputs: list[Any]) -> Tensors:
    floating = {i: x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()}
    if constants := getattr(module, "without_gradient", ()):
        names = dict(enumerate(inspect.signature(module.forward).parameters))
        floating = {i: x for i, x in floating.items() if {i, names.get(i)}.isdisjoint(constants)}
    leaves = {Value("input", index): value.requires_grad_() for index, value in floating.items()}
    return leaves | {Value("parameter", name): x for name, x in module.named_parameters() if x.requires_grad}


def _cotangent(index: int, output: Tensor, is_sum: bool) -> Tensor:
    if is_sum:
        return torch.ones((), dtype=output.dtype).expand(output.shape)
    generator = torch.Generator().manual_seed(1000 + index)
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float32)
    return drawn.to(output.dtype)
