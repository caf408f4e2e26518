"""Records the torch-level calls of a module's run: the spellings that a compiler sees, before any decomposition."""

import functools
import gc
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily, resolve_name
from torch.utils import _pytree

from fuzz.check.module.distributions import describe_tensor
from fuzz.check.module.named_arguments import name_arguments
from fuzz.check.run.tensor_memory import MemoryMap
from fuzz.protocol.recording import Recorded, RecordedCall, RecordedTensor, SharedMemory

ATTENTION_WORDS = ("scaled_dot_product_attention", "softmax", "multi_head_attention_forward", "flex_attention")
"""Words in names of functions that compute attention, or the weights of it."""
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "equal", "is_nonzero", "allclose")
_COUNTS = ("arange", "repeat_interleave", "repeat", "tile", "pad", "interpolate")
"""Functions whose sizes may be tensors; these are recorded as numbers."""
_PLAIN = (bool, int, float, str, type(None))
_SWITCHES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")

_SPECIAL = {"torch.utils.checkpoint": "checkpoint", "torch._higher_order_ops.invoke_subgraph": "nested_compile_region"}
"""By module: the function that runs its argument."""


def name_function(function: Any) -> str:
    """The public name of a torch function: torch.nn.functional.linear, torch.Tensor.view."""
    named = resolve_name(function)
    if named is None:
        named = f"{getattr(function, '__module__', None) or 'torch'}.{getattr(function, '__name__', function)}"
    return str(named).removesuffix(".__get__").replace("torch.functional.", "torch.")


def list_leaves(value: Any) -> list[Tensor]:
    """The tensors in a result or an argument, in order. Objects that torch's pytree does not know hold none."""
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


class CallRecorder(TorchFunctionMode):
    """Within it every torch-level call that gives tensors is recorded.

    known: names of functions; the calls inside of other Python functions are recorded in place of their own
    given: tensors by name and origin, as in `RecordedTensor`
    keeps_values: copy every value
    """

    def __init__(
        self,
        root: nn.Module,
        known: Collection[str],
        given: Iterable[tuple[str, str, Tensor]],
        *,
        keeps_values: bool = False,
    ) -> None:
        super().__init__()
        self.root = root
        self.calls: list[RecordedCall] = []
        self.tensors: list[RecordedTensor] = []
        self.copies: dict[int, Tensor] = {}  # by number: values before the run, and with `keeps_values` all
        self.results: dict[int, Tensor] = {}  # by number: the values that are returned, at the end of the run
        self.reads: list[str] = []
        self._functions = dict(_list_functions())
        self._known, self._keeps_values = known, keeps_values
        self._numbers: dict[int, int] = {}  # by id
        self.objects: list[Tensor] = []  # keeps ids taken
        self._paths = [""]
        self._entered: list[Any] = []  # Python functions whose body runs
        self._versions: dict[int, int | None] = {}  # of tensors from outside, before the run
        self._names = {id(module): path for path, module in root.named_modules()}
        # They are kept, so that no later tensor gets their ids. Proxies must not be asked for their class.
        self._older = {id(item): item for item in gc.get_objects() if issubclass(type(item), Tensor)}
        together = MemoryMap(torch.clone)
        for name, origin, tensor in given:
            if id(tensor) not in self._numbers:
                self._add(tensor, origin, name)
                self._versions[len(self.tensors) - 1] = None if tensor.is_inference() else tensor._version
        # Copies share memory as the tensors do.
        sharing = [number for group in self._list_sharing() for number in group]
        copies = together([self.objects[number].detach() for number in sharing])
        self.copies.update(zip(sharing, copies, strict=True))

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._are_functorch_transforms_active():
            # Its tensors stand for others. The results of the transform are tensors that no call made.
            return func(*args, **kwargs)
        name = name_function(func)
        short = name.rpartition(".")[2]
        is_python = isinstance(func, types.FunctionType) and _has_switch(func)
        # The body of Tensor.unflatten calls a function of that name.
        if short not in self._known and is_python and func not in self._entered:
            self._entered.append(func)
            try:
                with _switched_off(func), self:
                    return func(*args, **kwargs)
            finally:
                self._entered.pop()
        target = next(iter(list_leaves(args)), None)
        version = None if target is None or target.is_inference() else target._version
        # Arguments are described first, since the call may write into them.
        given, defaults = name_arguments(func, args, kwargs)
        counts = {key: value for key, value in given.items() if short in _COUNTS and key != "input"}
        if list_leaves(counts):
            self._note_read(name)
            given |= _pytree.tree_map_only(Tensor, Tensor.tolist, counts)
        is_index = name.endswith(("__getitem__", "__setitem__"))
        described = {key: self._describe(value, is_index=is_index) for key, value in given.items()}
        plain = {key: self._describe(value) for key, value in defaults.items()}
        autocast = name_autocast("cpu" if target is None else target.device.type)
        result = func(*args, **kwargs)
        writes = version is not None and target is not None and target._version != version
        made = list_leaves(result) or ([target] if writes and target is not None else [])
        if made:
            results = tuple(self._add(tensor, "made") for tensor in made)
            enabled, around = torch.is_grad_enabled(), _list_around(self._functions)
            call = RecordedCall(name, described, plain, results, self._paths[-1], autocast, enabled, around)
            self.calls.append(call)
        elif short in _READS and target is not None:
            self._note_read(name)
        return result

    def _note_read(self, name: str) -> None:
        self.reads.append(f"{name} in {self._paths[-1] or 'the module'}")

    @contextmanager
    def watch_modules(self) -> Iterator[None]:
        """Within it calls are told apart by submodule, and compiled functions are no calls of their own."""

        def enter(module: nn.Module, _inputs: Any) -> None:
            self._paths.append(self._names.get(id(module), self._paths[-1]))

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            self._paths.pop()

        before = nn.modules.module.register_module_forward_pre_hook(enter)
        after = nn.modules.module.register_module_forward_hook(leave, always_call=True)
        # torch.cond and flex_attention compile in eager too, which Dynamo refuses under a mode.
        compile_ = torch.compile
        torch.compile = _compile_without_mode(compile_)
        try:
            yield
        finally:
            torch.compile = compile_
            before.remove()
            after.remove()

    def finish(self, result: Any, *, training: bool, autocast: str) -> Recorded:
        """The recorded run, whose result is `result`."""
        returns = tuple(self._number(tensor) for tensor in list_leaves(result))
        self.results = {number: self.objects[number].detach().clone() for number in returns}
        for group in self._list_sharing():
            if any(self.objects[number]._version != self._versions[number] for number in group):
                self._note_shared(group)
        return Recorded(
            tuple(self.calls), tuple(self.tensors), returns, training, tuple(dict.fromkeys(self.reads)), autocast
        )

    def _list_sharing(self) -> list[list[int]]:
        """The numbers of tensors from outside that lie in one memory, for each such memory."""
        groups = defaultdict[int, list[int]](list)
        for number, version in self._versions.items():
            if version is not None and self.objects[number].layout is torch.strided:
                groups[self.objects[number].untyped_storage()._cdata].append(number)
        return [group for group in groups.values() if len(group) > 1]

    def _note_shared(self, group: list[int]) -> None:
        """Note of which of these tensors the others are slices: the largest, or one of the module."""

        def rank(number: int) -> tuple[int, bool]:
            return self.objects[number].numel(), self.tensors[number].origin != "argument"

        owner = max(group, key=rank)
        for number in group:
            if number != owner and self.tensors[number].origin == "argument":
                shared = SharedMemory(owner, *_find_slice(self.objects[owner], self.objects[number]))
                self.tensors[number] = replace(self.tensors[number], shared=shared)
                if shared.dim is None:
                    self.copies[number] = _copy(self.copies[number])  # the case has it apart

    def _number(self, tensor: Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._add(tensor, "captured" if id(tensor) in self._older else "unseen")
        return self._numbers[id(tensor)]

    def _add(self, tensor: Tensor, origin: str, name: str = "") -> int:
        number = self._numbers[id(tensor)] = len(self.tensors)
        self.objects.append(tensor)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self.tensors.append(describe_tensor(tensor, name, origin))
            if origin != "made" or self._keeps_values:
                self.copies[number] = _copy(tensor)
        return number

    def _describe(self, value: Any, *, is_index: bool = False) -> Any:
        """An argument as data (see `RecordedCall`)."""
        if isinstance(value, Tensor):
            return {"tensor": self._number(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, slice):
            return {"slice": [self._describe(end) for end in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, list) and is_index:
            return {"list": value} if all(type(item) is int for item in value) else {"other": "a list as index"}
        if isinstance(value, (list, tuple)):
            return [self._describe(item, is_index=is_index) for item in value]
        if isinstance(value, dict):
            return {str(key): self._describe(item) for key, item in value.items()}
        if isinstance(value, torch.device):
            return {"device": value.type}
        return value if isinstance(value, _PLAIN) else {"other": type(value).__name__}


def _list_functions(of: type[Any] = torch.autograd.Function) -> Iterator[tuple[types.CodeType, str]]:
    """The code of the forward of each autograd.Function, and its name. C calls it."""
    for one in of.__subclasses__():
        forward = one.__dict__.get("forward")
        if isinstance(forward, staticmethod) and isinstance(forward.__func__, types.FunctionType):
            yield forward.__func__.__code__, f"autograd.Function {one.__name__}"
        yield from _list_functions(one)


def _list_around(functions: Mapping[types.CodeType, str]) -> tuple[str, ...]:
    """The functions on the stack that torch traces or calls specially, outermost first."""
    found = dict[str, None]()
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if name := functions.get(frame.f_code) or _SPECIAL.get(frame.f_globals.get("__name__", "")):
            found[name] = None
        frame = frame.f_back
    return tuple(reversed(found))


def _compile_without_mode(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, whose functions run without the innermost mode."""

    def compile_function(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_(*args, **kwargs)

        @functools.wraps(compiled)
        def call(*given: Any, **named: Any) -> Any:
            with _pop_mode_temporarily():
                return compiled(*given, **named)

        return call if isinstance(compiled, types.FunctionType) else compiled

    return compile_function


def _find_slice(owner: Tensor, part: Tensor) -> tuple[int | None, int]:
    """The axis of the owner and the place on it from which on `part` is a slice; None without any."""
    if owner.stride() != part.stride():
        return None, 0
    axes = [axis for axis in range(owner.dim()) if owner.size(axis) != part.size(axis)]
    axis = axes[0] if axes else 0
    offset, step = part.storage_offset() - owner.storage_offset(), owner.stride(axis)
    fits = (
        len(axes) < 2 and step > 0 and offset % step == 0 and 0 <= offset // step <= owner.size(axis) - part.size(axis)
    )
    return (axis, offset // step) if fits else (None, 0)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the strides of the tensor."""
    if tensor.is_inference() or not tensor.numel() or 0 in tensor.stride():
        return tensor.detach().clone()
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor.detach())


def name_autocast(device: str) -> str:
    """The dtype of the autocast that is on; "" if it is off."""
    if not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _has_switch(function: Callable[..., Any]) -> bool:
    return any(name in function.__globals__ for name in _SWITCHES)


@contextmanager
def _switched_off(function: Callable[..., Any]) -> Iterator[None]:
    """Within it the Python functions of this function's module do not ask for overrides, so their body runs."""
    names = function.__globals__
    before = {name: names[name] for name in _SWITCHES if name in names}
    names.update(dict.fromkeys(before, lambda *_: False))
    try:
        yield
    finally:
        names.update(before)
