"""Makes subjects, which run a case, from rows of fuzz/subjects.py and from functions named on the command line."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fuzz.check.run import graph_passes
from fuzz.check.run.attention.function import Attention, AttentionFunction, load_sdpa
from fuzz.check.run.attention.layouts import arrange
from fuzz.check.run.compiled_module import CompiledModule
from fuzz.check.run.program import Compile
from fuzz.check.torch_api import compilation, settings, warm_caches
from fuzz.check.torch_api.exceptions import SubjectError, advise_on_import, find_user_line
from fuzz.check.torch_api.process_state import restore_state, take_changes
from fuzz.compilers.interface import Compiler, CompilerCapabilities
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
    compiler: Compiler | None = None  # that compiles at the first call
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

    def warm_up(self) -> None:
        """Build what the compiler builds at its first use. Its exceptions are those of later cases."""
        with suppress(Exception), torch.no_grad(), self.apply_settings():
            self.compile(_Small().eval(), False)(torch.ones(2))

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
    if spec.compiler is not None:
        return of_compiler(name, spec.compiler)
    return Subject(name, functools.partial(_compile, spec) if spec.backend else run_eager)


def of_compiler(name: str, compiler: Compiler) -> Subject:
    """The subject that a compiler of fuzz/compilers makes."""

    def compile_module(module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        compilation.expect("")  # `CompiledModule` expects more if it meets torch.compile
        if problem := compiler.find_problem():
            raise SubjectError(problem)
        return CompiledModule(compiler, module, dynamic)

    return Subject(name, compile_module, compiler=compiler)


def _compile(spec: SubjectSpec, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
    compilation.expect(compilation.COMPILED_FORMS.get(spec.backend, compilation.DYNAMO_GRAPH))
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
    parameters = _read_parameters(name, function, functools.partial(_list_keywords, name, attention))
    return Subject(name, attention=attention) if parameters[:3] in _QKV else _as_compiler(name, function, parameters)


def _list_keywords(name: str, attention: Attention) -> list[str]:
    """The keywords of every call of an attention function. Raises `SubjectError`."""
    try:
        call = arrange(attention.capabilities, cut=False, scale=1.0, **dict.fromkeys("qkv", torch.zeros(1, 1, 1, 1)))
    except SubjectError as error:
        raise SubjectError(f"subject {name!r}: {error}") from error
    return sorted(call.arguments.keys() - {"q", "k", "v"})


def _as_compiler(name: str, function: Callable[..., Any], parameters: list[str]) -> Subject:
    """The subject of a user's compiler. If it promises to see changes of the module, it compiles before these."""
    try:
        capabilities = CompilerCapabilities.read(getattr(function, "capabilities", {}))
    except ValueError as error:
        raise SubjectError(f"subject {name!r}: {error}") from error

    def compile_given(given: Any, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        with restore_state():
            compiled: Callable[..., Any] = function(given, inputs) if parameters[1:2] == ["inputs"] else function(given)
        return compiled

    def compile_module(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
        compiled = compile_given(module, ())
        if compilation.is_compiled_by_dynamo(compiled):
            compilation.expect(compilation.DYNAMO_GRAPH)
        return compiled

    takes: Literal["program", "module"] = "program" if parameters[:1] == ["program"] else "module"
    row = Compiler(name, "", "", compile_given, takes, capabilities=capabilities)
    if takes == "module" and parameters[1:2] != ["inputs"] and capabilities.state:
        return Subject(name, compile_module, compiler=row)
    return of_compiler(name, row)


def _read_parameters(name: str, function: Any, list_keywords: Callable[[], list[str]]) -> list[str]:
    """The names of a subject's parameters; none for a function written in C that has no signature.

    Raises `SubjectError` if the function can be called neither as an attention function nor with a module.

    list_keywords: gives the keywords of every call of attention
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
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one.name for one in signature.parameters.values() if one.kind in kinds and one.default is one.empty]
    if len(needed) == 2 and needed[1].endswith(("inputs", "args")):
        parameters[1] = "inputs"
    if parameters[:3] not in _QKV and sorted(parameters[:3]) in map(sorted, _QKV):
        raise SubjectError(f"subject {name!r} takes {signature}: the order must be q, k, v")
    keywords = list_keywords() if parameters[:3] in _QKV else ["scale"]
    try:
        if parameters[:3] in _QKV:
            signature.bind("q", "k", "v", **dict.fromkeys(keywords))
        else:
            signature.bind("module", *parameters[1:2] if parameters[1:2] == ["inputs"] else ())
    except TypeError as error:
        raise SubjectError(
            f"subject {name!r} takes {signature}: {error}. Attention is called as (q, k, v, *,"
            f" {', '.join(keywords)}) with further keywords where a case needs them, a compiler as"
            " (module) or (module, inputs), or (program) if it takes an exported program; see docs/compilers.md"
        ) from error
    return parameters
