"""torch's configuration: for every check, and for subjects and settings. Only this module writes it."""

import functools
import importlib
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._dynamo.config as dynamo
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch._dynamo import guards

from fuzz.check.torch_api import compilation, kernel_builds
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.process_state import hold_state
from fuzz.check.torch_api.torch_internals import find, intercept, intercept_for_good, require
from fuzz.subjects import MEMORY_BUDGET


def configure_torch() -> None:
    """Make runs comparable and counters honest. A worker calls this once, before the first compile.

    * One thread per operation: sums have one order.
    * Compiled code draws from eager's random stream (`fallback_random`).
    * No graph-level caches: a hit skips the passes whose work is evidence. Caches keyed on generated code stay.
    * No TF32, which would make float32 a low-precision type.
    * Inductor's recursion limit, which `compile_fx` would set for good.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    install_poison()
    compilation.watch()
    kernel_builds.install()
    inductor.fallback_random = True
    _switch_off(inductor, "fx_graph_cache", "fx_graph_remote_cache", "bundled_autotune_remote_cache")
    _switch_off(functorch, "enable_autograd_cache", "enable_remote_autograd_cache")
    _switch_off(dynamo, "verbose", "suppress_errors", "run_gc_after_compile")
    if hasattr(guards, "profile_guard_manager"):
        # For its log, Dynamo times guards once per compile and flushes the processor's caches first: 30 ms.
        guards.profile_guard_manager = lambda *_: 0.0
    if find(_FLEX, _RUNS_FLEX_EAGERLY) is not None:
        # Outside of torch.compile it compiles itself: a second for each case, and no gain in speed.
        setattr(importlib.import_module(_FLEX), _RUNS_FLEX_EAGERLY, True)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")


_FLEX, _RUNS_FLEX_EAGERLY = "torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


def trace_flex_attention() -> AbstractContextManager[Any]:
    """flex_attention traces itself, as for users. Otherwise exported programs with it return tensors without values."""
    known = find(_FLEX, _RUNS_FLEX_EAGERLY) is not None
    return mock.patch(f"{_FLEX}.{_RUNS_FLEX_EAGERLY}", False) if known else nullcontext()


@contextmanager
def allow(*, own_random: bool, recomputes: bool) -> Iterator[None]:
    """Allow Inductor its own random numbers, as users have them, and recomputation of most activations.

    Only with its own random numbers does Inductor decompose dropout into the graph of its patterns for training.
    """
    random = {"fallback_random": False} if own_random else {}
    memory = {"activation_memory_budget": MEMORY_BUDGET} if recomputes else {}
    with inductor.patch(random), functorch.patch(memory):
        yield


@contextmanager
def _use_deterministic_algorithms(_value: Any) -> Iterator[None]:
    """Raise `SubjectError` if torch has no deterministic algorithm."""
    try:
        with hold_state("torch's deterministic mode", _RAISES):
            yield
    except Exception as error:
        if "deterministic" in str(error):
            raise SubjectError(f"torch has no deterministic algorithm: {error}") from error
        raise


POISON = "poison"
"""The setting that fills memory."""
_HOME = "torch._C._dynamo.guards"
_CPU = "_empty_strided_cpu"
_ALLOCATORS = (_CPU, "_empty_strided_cpu_pinned", "_empty_strided_cuda")
_BYTES = {"nan": 0xFF, "large": 0x7B, "zero": 0}
"""The fill of each kind. 0xFF is NaN in every float dtype. 0x7B is 1.3e36 in float32 and bfloat16, 61280 in float16,
and 2071690107 as an index, which is too large for any tensor here. With zeros many reads are right by chance."""

_kind = ""


def install_poison() -> None:
    """Replace the functions that allocate for compiled code, once per process and before the first compile.

    Generated wrappers bind these functions when they are loaded, and equal code loads its wrapper once. Not filled are
    memory that C++ allocates (cpp_wrapper, AOTInductor, fallback kernels, locals of kernels), and a buffer that reuses
    another buffer.
    """
    for name in _ALLOCATORS:
        if find(_HOME, name) is not None:
            intercept_for_good(_HOME, name, _fill_allocation)


@contextmanager
def poison(kind: str) -> Iterator[None]:
    """While entered, fills memory that compiled code allocates, so a read before the first write is always wrong.

    Raises `SubjectError` if this torch lacks the allocators.

    kind: a key of `_BYTES`. Integers are filled at most with "large", booleans with True
    """
    global _kind  # noqa: PLW0603 - the allocators outlive every case
    require(_HOME, _CPU)
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before or "zero"  # Freed memory holds poison from now on.


def _fill_allocation(allocate: Callable[..., Any], *args: Any) -> Any:
    tensor = allocate(*args)
    if _kind:
        # The allocator's pools are uint8; their parts have any dtype.
        is_free = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.uint8
        most = 0xFF if is_free else 1 if tensor.dtype is torch.bool else _BYTES["large"]
        # Padding between rows is filled too.
        tensor.untyped_storage().fill_(min(_BYTES[_kind], most))
    return tensor


@contextmanager
def _keep_operations_apart(_value: Any) -> Iterator[None]:
    """Compile every operation to a separate kernel."""

    def run_and_realize(run_node: Any, graph: Any, node: Any) -> Any:
        result = run_node(graph, node)
        # A view has no storage of its own.
        if type(getattr(result, "data", None)).__name__ == "StorageBox":
            result.realize()
        return result

    def codegen_and_flush(codegen_node: Any, scheduling: Any, node: Any) -> Any:
        result = codegen_node(scheduling, node)
        scheduling.flush()  # C++ loops that follow each other are one function
        return result

    with (
        intercept("torch._inductor.scheduler", "Scheduler.can_fuse", lambda *_args, **_options: False),
        intercept("torch._inductor.codegen.cpp", "CppScheduling.codegen_node", codegen_and_flush),
        intercept("torch._inductor.graph", "GraphLowering.run_node", run_and_realize),
    ):
        yield


_as, _compiles_backward = "", False


@contextmanager
def _compile_autograd(_value: Any) -> Iterator[None]:
    """Compile backward passes with the options of the last `compile_module`, and none from an earlier case."""
    enable = require("torch._dynamo.compiled_autograd", "_enable")
    require("torch._C._dynamo", "compiled_autograd.clear_cache")()
    with mock.patch(f"{__name__}._compiles_backward", True), enable(lambda graph: torch.compile(graph, **_options)):
        yield


def is_compiled_plainly() -> bool:
    """Whether no setting asks for another way of compiling."""
    return not (_as or _compiles_backward)


_options: dict[str, Any] = {}


def compile_module(module: Any, **options: Any) -> Callable[..., Any]:
    """The module under torch.compile, in the way that the settings ask for. Raises `SubjectError`."""
    _options.clear()
    _options.update(options)
    if _as == "in_place":
        module.compile(**options)
        return module
    if _as in ("method", "parts"):
        parts = [module] if _as == "method" else list(module.children())
        for part in parts:
            # Dynamo skips the frames of torch's own layers under `part.compile()`. A copy of a part has its own method.
            part.forward = types.MethodType(torch.compile(type(part).forward, **options), part)
        if not parts:
            raise SubjectError("the module has no part to compile")
        return module
    compiled: Callable[..., Any] = torch.compile(module, **options)
    return torch.compile(compiled, **options) if _as == "twice" else compiled


_WARNS, _RAISES = 1, 2  # torch's levels: warn, or raise, if there is no deterministic algorithm
SWITCH_CONTEXTS: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "use_deterministic_algorithms": _use_deterministic_algorithms,
    POISON: poison,
    "compiled_as": functools.partial(mock.patch, f"{__name__}._as"),
    "compiled_autograd": _compile_autograd,
    "deterministic_or_warn": lambda _: hold_state("torch's deterministic mode", _WARNS),
    "fast_path": functools.partial(hold_state, "torch's fast path"),
    "operations_apart": _keep_operations_apart,
}
"""The contexts of settings that are not Inductor's, by name."""


@contextmanager
def apply(settings: Mapping[str, Any]) -> Iterator[None]:
    """Enter the settings of a case. Raises `SubjectError` for a setting that this torch lacks."""
    options = {name: settings[name] for name in settings.keys() - SWITCH_CONTEXTS.keys()}
    for name in options:
        if not hasattr(inductor, name):
            raise SubjectError(f"torch {torch.__version__} has no setting {name}")
    with ExitStack() as stack:
        stack.enter_context(inductor.patch(options))
        for name in settings.keys() & SWITCH_CONTEXTS.keys():
            stack.enter_context(SWITCH_CONTEXTS[name](settings[name]))
        yield


def _switch_off(config: object, *names: str) -> None:
    for name in names:
        if hasattr(config, name):
            setattr(config, name, False)
