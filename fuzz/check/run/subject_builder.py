"""Makes subjects, which run a case, from rows of fuzz/subjects.py and from functions named on the command line."""

import functools
import importlib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fuzz.check.run import graph_passes
from fuzz.check.run.attention.function import Attention, AttentionFunction, load_sdpa
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.run.program import Compile, same_bits
from fuzz.check.torch_api import compilation, settings, warm_caches
from fuzz.check.torch_api.exceptions import NothingCompiled, SubjectError, advise_on_import, find_user_line
from fuzz.check.torch_api.process_state import restore_state, take_changes
from fuzz.check.torch_api.torch_internals import require
from fuzz.subjects import SUBJECTS, SubjectSpec, get_spec, is_user_function

_QKV = (["q", "k", "v"], ["query", "key", "value"], ["q", "k_cache", "v_cache"])


def run_eager(module: nn.Module, _dynamic: bool | None) -> nn.Module:
    return module


@dataclass(frozen=True)
class Subject:
    """One way to run a module."""

    name: str
    compile: Compile = run_eager
    attention: Attention | None = None  # the function that replaces the attention of the module
    options: Mapping[str, Any] = field(default_factory=dict)  # settings under which it is compiled and run
    under: tuple[Callable[[], AbstractContextManager[None]], ...] = ()  # make further contexts of both
    caches: str = ""  # the name of the caches that a warm subject shares; experiments have caches of their own

    @property
    def spec(self) -> SubjectSpec:
        return get_spec(self.name)

    @property
    def compiles(self) -> bool:
        """Whether it is a compiler, as far as we know: a function of the user's may be none."""
        return self.attention is None and bool(self.spec.backend)

    def can_compile(self) -> bool:
        """Whether compiled code of one small function runs. An exception tells that the compiler tries."""
        torch._dynamo.reset()  # Dynamo skips code for good that it has met while it was off.
        with torch.no_grad(), self.apply_settings():
            try:
                self.compile(_Small().eval(), False)(torch.ones(2))
                compilation.require_run()
            except NothingCompiled:
                return False
            except Exception:
                return True
        return True

    @contextmanager
    def apply_settings(self) -> Iterator[None]:
        """Compile and run within these contexts."""
        compilation.expect("")  # until `compile`
        allowed = settings.allow(own_random=self.spec.random, recomputes=self.spec.recomputes)
        with allowed, settings.apply(self.options), ExitStack() as stack:
            if self.spec.warm:
                stack.enter_context(warm_caches.share(self.caches))
            for surroundings in self.under:
                stack.enter_context(surroundings())
            yield


class _Small(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return (value + 1).sin()


class Exported:
    """A module that torch.export exports at its first call.

    Calls in training, and calls with other sizes, strides, dtypes or parameters than the first call, raise
    `SubjectError`.

    dynamic: sizes are symbolic if the program allows it
    packaged: AOTInductor compiles the program
    """

    def __init__(self, module: nn.Module, dynamic: bool | None, *, packaged: bool) -> None:
        self._module, self._dynamic, self._packaged = module, dynamic, packaged
        self._form: list[Any] | None = None
        self._weights: list[Tensor] = []
        self._call: Callable[..., Any] = module

    def __call__(self, *inputs: Tensor, **named: Any) -> Any:
        if named or not all(isinstance(value, Tensor) for value in inputs):
            raise SubjectError("exported programs take tensors here, by their places")
        if torch.is_grad_enabled() or self._module.training:
            raise SubjectError("exported programs are for inference")
        if any(part._forward_hooks or part._forward_pre_hooks for part in self._module.modules()):
            raise SubjectError("exported programs have no hooks")
        form = [(value.shape, value.stride(), value.dtype) for value in (*inputs, *self._module.buffers())]
        weights = [value.detach().clone() for value in self._module.parameters()]
        if self._form is None:
            self._form, self._weights, self._call = form, weights, self._export(inputs)
        if form != self._form or not all(map(same_bits, self._weights, weights)):
            raise SubjectError("the program is exported for other sizes, strides, dtypes or parameters")
        return self._call(*inputs)

    def _export(self, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        sizes = [[torch.export.Dim.AUTO] * value.dim() for value in inputs]
        with settings.trace_flex_attention():
            program = torch.export.export(self._module, inputs, dynamic_shapes=sizes if self._dynamic else None)
        if not self._packaged:
            exported: Callable[..., Any] = program.module()
            return exported
        where = require("torch._inductor.runtime.cache_dir_utils", "cache_dir")()
        # AOTInductor leaves 1.5 MB of every program in the directory of this variable.
        with (
            tempfile.TemporaryDirectory(dir=where) as scratch,
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=scratch),
        ):
            # Without this dictionary it writes into torch's configuration.
            configs = {"aot_inductor.metadata": dict[str, str]()}
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=f"{scratch}/module.pt2", inductor_configs=configs
            )
            loaded: Any = torch._inductor.aoti_load_package(path)
        buffers = dict(self._module.named_buffers())
        if buffers:
            # The package copies its constants, so writes to them would not be visible.
            loaded.load_constants(buffers, check_full_update=False, user_managed=True)
        return loaded


def available(device: str = "cpu") -> dict[str, Subject]:
    """The built-in subjects that run on `device`, by name."""
    return {name: _build(name, spec) for name, spec in SUBJECTS.items() if device in spec.devices}


def find(name: str) -> Subject:
    """The subject called `name`, or the function `package.module:function`. Raises `SubjectError`."""
    if is_user_function(name):
        return _import(name)
    if name not in SUBJECTS:
        raise SubjectError(f"unknown subject {name!r}: choose from {', '.join(SUBJECTS)}, or package.module:function")
    return _build(name, SUBJECTS[name])


def _build(name: str, spec: SubjectSpec) -> Subject:
    if spec.is_attention:
        load = functools.partial(_load_kernel, spec.function) if spec.function else None
        return Subject(name, attention=Attention(load or functools.partial(load_sdpa, spec.sdpa)))
    return Subject(name, functools.partial(_compile, spec) if spec.backend else run_eager)


def _compile(spec: SubjectSpec, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
    compilation.expect(compilation.form_of(spec.backend))
    if spec.is_exported:
        return Exported(module, dynamic, packaged=spec.backend == "aot_inductor")
    if spec.backend == "passes":
        return graph_passes.compile_module(module, spec.dynamic or dynamic)
    words = {"backend": spec.backend, "dynamic": spec.dynamic or dynamic, **dict(spec.keywords)}
    return settings.compile_module(module, **words)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _load_kernel(path: str) -> AttentionFunction:
    """A kernel of this repository: native on CUDA, interpreted on the CPU. Raises ImportError if it can't run."""
    fault = importlib.import_module("kernels.tiles").find_interpreter_fault()
    if fault:
        raise ImportError(fault)
    return _load(path)


def _import(name: str) -> Subject:
    """The subject of `package.module:function`. Raises `SubjectError`.

    A function whose first parameters are q, k and v (or query, key and value) computes attention, with the keywords and
    capabilities of docs/kernels.md. Any other function takes a module and returns a callable.
    """
    try:
        with restore_state():
            function = _load(name)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        told = " at ".join(filter(None, [text, find_user_line(error)]))
        why = advise_on_import(error, name.partition(":")[0]) or told
        raise SubjectError(f"subject {name!r} can't be imported: {why}") from error
    changes, _ = take_changes()
    lost = [change.state for change in changes if not change.is_restored]
    if lost:
        raise SubjectError(f"subject {name!r} changes {lost[0]} when it is imported, which can't be put back")
    attention = Attention(lambda: function)
    try:
        call = arrange(attention.capabilities, cut=False, scale=1.0, **dict.fromkeys("qkv", torch.zeros(1, 1, 1, 1)))
    except SubjectError as error:
        raise SubjectError(f"subject {name!r}: {error}") from error
    parameters = _read_parameters(name, function, sorted(call.arguments.keys() - {"q", "k", "v"}))
    if parameters[:3] in _QKV:
        return Subject(name, attention=attention)

    def compile_module(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
        with restore_state():
            compiled: Callable[..., Any] = function(module)
        if compilation.is_compiled_by_dynamo(compiled):
            compilation.expect(compilation.DYNAMO_GRAPH)
        return compiled

    return Subject(name, compile_module)


def _read_parameters(name: str, function: Any, keywords: list[str]) -> list[str]:
    """The names of a subject's parameters; none for a function written in C that has no signature.

    Raises `SubjectError` if the function can be called neither as an attention function nor with a module.

    keywords: the keywords of every call of attention
    """
    is_other = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if inspect.isclass(function):
        raise SubjectError(f"subject {name!r} is a class: name a function, or an object that can be called")
    if not callable(function) or any(applies(function) for applies in is_other):
        raise SubjectError(f"subject {name!r} is no function that takes arguments and returns: {function!r:.80}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    parameters = list(signature.parameters)
    if parameters[:3] not in _QKV and sorted(parameters[:3]) in map(sorted, _QKV):
        raise SubjectError(f"subject {name!r} takes {signature}: the order must be q, k, v")
    try:
        if parameters[:3] in _QKV:
            signature.bind("q", "k", "v", **dict.fromkeys(keywords))
        else:
            signature.bind("module")
    except TypeError as error:
        raise SubjectError(
            f"subject {name!r} takes {signature}: {error}. Attention is called as (q, k, v, *,"
            f" {', '.join(keywords)}) with further keywords where a case needs them, a compiler as"
            " (module); see docs/kernels.md"
        ) from error
    return parameters
