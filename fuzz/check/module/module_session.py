"""A user's module in a worker: loads it from its factory, records the runs of its submodules, repeats them as cases."""

import hashlib
import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from fuzz.check.module.model_runs import FactoryMissingError, ModelError
from fuzz.check.module.module_numbers import change_number, is_same_run, list_numbers, set_number
from fuzz.check.module.recorder import ATTENTION_WORDS, CallRecorder, list_leaves, name_autocast
from fuzz.check.module.released_models import PACKAGES, build, list_runs
from fuzz.check.run import value_files
from fuzz.check.run.live_program import LiveProgram, copy_arguments, copy_together, has_dropout, pair_tensors
from fuzz.check.run.program import Program, hash_tensor, same_bits
from fuzz.check.run.tensor_memory import MemoryMap, as_real
from fuzz.check.torch_api import exceptions
from fuzz.protocol import Live, Message
from fuzz.protocol.recording import (
    KeepValues,
    KeptValues,
    Loaded,
    LoadModule,
    NotRecorded,
    Recorded,
    RecordedCall,
    RecordSubmodule,
    Repeat,
    Repeated,
    Submodule,
    VariedRun,
)


class _Reached(BaseException):  # a module may catch any Exception
    """Carries the arguments of a submodule out of a run."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: str) -> None:
        super().__init__()
        self.arguments, self.autocast = (args, kwargs), autocast


class ModuleSession:
    """Answers the messages of `fuzz.protocol.recording`."""

    def __init__(self, device: str) -> None:
        self._device, self._factory, self._run = device, "", ""
        self._root: nn.Module = nn.Identity()
        self._captured: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any], str]] = {}
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self._module: nn.Module = self._root
        self._recorder = CallRecorder(self._root, (), ())
        self._gradients: dict[int, Tensor] = {}  # of the recorded run, by number of the tensor

    def answer(self, message: Message) -> Message:
        try:
            if isinstance(message, LoadModule):
                return self._load(message)
            if isinstance(message, RecordSubmodule):
                return self._record(message)
            if isinstance(message, KeepValues):
                return self._keep(message)
            assert isinstance(message, Repeat)
            return self._repeat(message)
        except (ModelError, value_files.ValuesError) as error:
            return NotRecorded(str(error), isinstance(error, FactoryMissingError))
        except Exception as error:
            return NotRecorded(exceptions.line(error))

    def _load(self, message: LoadModule) -> Loaded:
        self._factory, self._run, self._captured = message.factory, message.run, {}
        runs = list_runs(self._factory) if message.lists_runs and _is_released(self._factory) else ()
        self._make()
        recorder = self._record_root()
        # The whole is judged also where a transform or a compiler makes all its calls.
        counts, attends = defaultdict[str, int](int, {"": 0}), set[str]()
        for call in recorder.calls:
            parents = [call.module[:end] for end, letter in enumerate(call.module) if letter == "."]
            for path in dict.fromkeys(("", *parents, call.module)):
                counts[path] += 1
                if any(word in call.function for word in ATTENTION_WORDS):
                    attends.add(path)
        types = {path: type(module).__name__ for path, module in self._root.named_modules()}
        reached = [path for path in types if path in counts]
        parts = (Submodule(path, types[path], path in attends, counts[path]) for path in reached)
        drops = self._root.training and has_dropout(self._root)
        return Loaded(tuple(parts), self._root.training, drops, self._hash_values(), runs)

    def _hash_values(self) -> str:
        """Equal for equal parameters, buffers and arguments."""
        given = list_leaves(self._arguments)
        every = (*self._root.parameters(), *self._root.buffers(), *given)
        return hashlib.sha256(" ".join(map(hash_tensor, every)).encode()).hexdigest()[:16]

    def open(self, live: Live) -> LiveProgram:
        """A part of the module as a program. Raises `ModelError`, and exceptions of copying."""
        if not self._factory:
            raise ModelError("no module is loaded")
        if live.path not in self._captured:
            self._captured = {live.path: self._capture(live.path)}  # of one part alone: modules are large
        module, args, kwargs, autocast = self._captured[live.path]
        is_training = self._root.training and not live.inference
        return LiveProgram(
            module, (args, kwargs), live, is_training=is_training, device=self._device, autocast=autocast
        )

    def _make(self) -> None:
        torch.manual_seed(0)
        made = _find_factory(self._factory, self._run)()
        parts = made if isinstance(made, tuple) else ()
        args, kwargs = (*parts[1:], {})[:2] if len(parts) in (2, 3) else (None, None)
        if not (
            parts and isinstance(parts[0], nn.Module) and isinstance(args, (tuple, list)) and isinstance(kwargs, dict)
        ):
            raise ModelError(f"it gives {_name_type(made)}, expected (module, args) or (module, args, kwargs)")
        self._root = parts[0].to(self._device)
        self._arguments = _pytree.tree_map_only(Tensor, lambda value: value.to(self._device), (tuple(args), kwargs))

    def _copy_root(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The module and its arguments as the factory gave them: a run may change both, also outside of buffers."""
        try:
            root, (args, kwargs) = copy_together(self._root, self._arguments)
        except Exception:
            self._make()
            root, (args, kwargs) = self._root, self._arguments
        return root, args, kwargs

    def _record_root(self) -> CallRecorder:
        root, args, kwargs = self._copy_root()
        recorder = CallRecorder(root, (), ())
        self._run_recorded(recorder, args, kwargs, "")
        return recorder

    def _capture(self, path: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], str]:
        """A submodule as it is before its first call, the arguments of that call, and the dtype of its autocast."""
        root, args, kwargs = self._copy_root()
        if not path:
            return root, args, kwargs, ""

        def reach(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args, kwargs, name_autocast(self._device))

        module = root.get_submodule(path)
        hook = module.register_forward_pre_hook(reach, with_kwargs=True)
        torch.manual_seed(0)
        try:
            with torch.set_grad_enabled(root.training):
                root(*args, **kwargs)
        except _Reached as reached:
            return module, *copy_arguments(reached.arguments, known=pair_tensors(root, root)), reached.autocast
        finally:
            hook.remove()
        raise ModelError(f"{path} is not called")

    def _record(self, message: RecordSubmodule) -> Recorded:
        module, args, kwargs, autocast = self._capture(message.path)
        self._module = module
        training = module.training
        self._recorder = recorder = _make_recorder(module, args, kwargs, message)
        with torch.set_grad_enabled(training):
            result = self._run_recorded(recorder, args, kwargs, autocast)
            if not list_leaves(result):
                raise ModelError(f"{message.path or 'the module'} returns {_name_type(result)}, which holds no tensor")
            recorded = recorder.finish(result, training=training, autocast=autocast)
            self._gradients = {}
            if training:
                leaves = {
                    number: tensor
                    for number, tensor in enumerate(recorder.objects)
                    if tensor.is_leaf and tensor.requires_grad and recorder.tensors[number].origin != "made"
                }
                returned = [recorder.objects[number] for number in dict.fromkeys(recorded.returns)]
                self._gradients = _differentiate(returned, leaves)
        return replace(recorded, varied=tuple(self._vary(message, recorded)))

    def _run_recorded(
        self, recorder: CallRecorder, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: str
    ) -> Any:
        torch.manual_seed(0)
        with recorder.watch_modules(), torch.set_grad_enabled(recorder.root.training):
            cast = torch.autocast(self._device, dtype=getattr(torch, autocast)) if autocast else nullcontext()
            with recorder, cast:
                return recorder.root(*args, **kwargs)

    def _vary(self, message: RecordSubmodule, recorded: Recorded) -> Iterator[VariedRun]:
        """A run with another value of each number among the arguments. Without calls if it differs in more."""
        module, args, kwargs, autocast = self._capture(message.path)
        for name, value in list_numbers(module.forward, args, kwargs).items():
            module, args, kwargs, autocast = self._capture(message.path)
            other, calls = change_number(value), tuple[RecordedCall, ...]()
            with suppress(Exception):
                changed = set_number(module.forward, args, kwargs, name, other)
                recorder = _make_recorder(module, args, kwargs, message)
                result = self._run_recorded(recorder, *changed, autocast)
                again = recorder.finish(result, training=module.training, autocast=autocast)
                calls = again.calls if is_same_run(recorded, again.calls, again.tensors) else ()
            yield VariedRun(name, value, other, calls)

    def _keep(self, message: KeepValues) -> KeptValues:
        copies = self._recorder.copies
        return value_files.keep({number: as_real(copies[number]) for number in message.tensors}, message)

    def _repeat(self, message: Repeat) -> Repeated:
        kept = (self._recorder.copies, self._recorder.results)
        copies, results = ({number: as_real(value) for number, value in values.items()} for values in kept)
        value_files.use(message.files)
        program = Program(message.source, self._device)
        try:
            module = program.module(self._module.training)
            if message.own_values:
                inputs = next(iter(program.calls(module)))
            else:
                for name, number in message.parameters:
                    _set_value(module, name, copies[number])
                known = [(copies[number], getattr(module, name)) for name, number in message.parameters]
                tensors = MemoryMap(torch.clone)([copies[number] for _, number in message.inputs], known)
                # Numbers of the text follow its tensors.
                inputs = [*tensors, *(one for one in program.inputs() if not isinstance(one, torch.Tensor))]
            numbers = [number for _, number in message.inputs]
            training = self._module.training and message.compares_gradients
            if training:
                for number, value in zip(numbers, inputs, strict=False):
                    value.requires_grad_(number in self._gradients or self._recorder.objects[number].requires_grad)
            torch.manual_seed(0)
            with torch.set_grad_enabled(training):
                outputs = list_leaves(module(*inputs))
            for index, (number, output) in enumerate(zip(message.values, outputs, strict=True)):
                recorded = results.get(number, copies.get(number))
                if recorded is not None and not same_bits(output.detach(), recorded.detach()):
                    return Repeated(f"output {index}")
            if training:
                leaves = dict(zip(numbers, inputs, strict=False))
                leaves |= {number: getattr(module, name) for name, number in message.parameters}
                # A buffer that a call wrote into is no leaf.
                gradients = _differentiate(outputs, {n: v for n, v in leaves.items() if v.requires_grad and v.is_leaf})
                for number in self._gradients.keys() | gradients.keys():
                    both = gradients.get(number), self._gradients.get(number)
                    if both[0] is None or both[1] is None or not same_bits(both[0], both[1]):
                        return Repeated(f"gradient of {self._recorder.tensors[number].name}")
        finally:
            program.close()
        return Repeated()


def _make_recorder(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], message: RecordSubmodule
) -> CallRecorder:
    given = [(name, "argument", tensor) for name, tensor in _name_arguments(module, args, kwargs)]
    given += [(name, "parameter", tensor) for name, tensor in module.named_parameters()]
    given += [(name, "buffer", tensor) for name, tensor in module.named_buffers()]
    return CallRecorder(module, message.known, given, keeps_values=True)


def _is_released(name: str) -> bool:
    return name.partition("/")[0] in PACKAGES


def _find_factory(name: str, run: str) -> Callable[[], Any]:
    if _is_released(name):
        return lambda: build(name, run)
    if run:
        raise ModelError(f"it has no run {run!r}: only released models have runs")
    path, _, attribute = name.partition(":")
    if not attribute or "/" in name:
        raise ModelError("expected package.module:function")
    try:
        found = importlib.import_module(path)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise FactoryMissingError(exceptions.advise_on_import(error, path) or exceptions.line(error)) from error
    if not callable(found):
        raise ModelError(f"it is {_name_type(found)}, expected a function")
    return found


def _name_type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_name_type, value))})"
    return type(value).__name__


def _name_arguments(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors among the arguments, by the names of the parameters of `forward`."""
    named: dict[str, Any] = {f"x{index}": value for index, value in enumerate(args)} | kwargs
    with suppress(TypeError, ValueError):
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        named = {}
        for name, value in bound.arguments.items():
            is_rest = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            named |= value if is_rest else {name: value}
    found = []
    for name, value in named.items():
        tensors = list_leaves(value)
        found += [(name if len(tensors) == 1 else f"{name}_{index}", tensor) for index, tensor in enumerate(tensors)]
    return found


def _differentiate(outputs: Sequence[Tensor], leaves: dict[int, Tensor]) -> dict[int, Tensor]:
    """The gradients of leaves by number, for the same random cotangents in every run."""
    used = [output for output in outputs if output.requires_grad]
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(output.shape, generator=generator).to(output) for output in used]
    names = list(leaves)
    if not used or not names:
        return {}
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        used, [leaves[name] for name in names], drawn, allow_unused=True
    )
    return {name: value for name, value in zip(names, gradients, strict=True) if value is not None}


def _set_value(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a parameter or buffer to a copy of `value`."""
    kept = MemoryMap(torch.clone)([value.detach()])[0]
    if name in dict(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(kept, requires_grad=getattr(module, name).requires_grad))
    else:
        setattr(module, name, kept)
