"""The state of torch that every check relies on, set once per worker. Only this module writes torch's configuration."""

import gc
import importlib
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from fuzz.check import poison
from fuzz.check.exceptions import SubjectError
from fuzz.check.process_state import hold_state
from fuzz.check.torch_internals import find, patch
from fuzz.subjects import MEMORY_BUDGET


def configure_torch() -> None:
    """Make runs comparable and counters honest; call once, before the first compile.

    * one thread per operation, so that sums are taken in one order;
    * the eager random stream in compiled code (`fallback_random`);
    * no graph-level caches: a warm one skips the passes whose work is evidence. Caches keyed on generated code stay;
    * no TF32, which would make float32 a low-precision type;
    * the recursion limit that Inductor's `compile_fx` raises it to and leaves.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch._dynamo import guards

    poison.install()
    inductor.fallback_random = True
    _switch_off(inductor, "fx_graph_cache", "fx_graph_remote_cache", "bundled_autotune_remote_cache")
    _switch_off(functorch, "enable_autograd_cache", "enable_remote_autograd_cache")
    _switch_off(dynamo, "verbose", "suppress_errors", "run_gc_after_compile")
    if hasattr(guards, "profile_guard_manager"):
        # Dynamo times its guards once per compile, for its log, after flushing the processor's caches: 30 ms each time.
        guards.profile_guard_manager = lambda *_: 0.0
    if find(_FLEX, _RUNS_FLEX_EAGERLY) is not None:
        # Outside of torch.compile it compiles itself, for no gain in speed and a second for each case.
        setattr(importlib.import_module(_FLEX), _RUNS_FLEX_EAGERLY, True)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")


_FLEX, _RUNS_FLEX_EAGERLY = "torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


def trace_flex_attention() -> AbstractContextManager[None]:
    """While entered, flex_attention traces itself as it does for users. Else an exported program that has it gives
    tensors without values."""
    known = find(_FLEX, _RUNS_FLEX_EAGERLY) is not None
    return patch(importlib.import_module(_FLEX), _RUNS_FLEX_EAGERLY, False) if known else nullcontext()


@contextmanager
def allow(*, own_random: bool, recomputes: bool) -> Iterator[None]:
    """While entered, what a subject is allowed: random numbers of its own, as Inductor draws them for users, and to
    compute most of what the backward pass reads again.

    Only with its own random numbers does it take dropout apart into the graph that its patterns in training have.
    """
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    random = patch(inductor, "fallback_random", False) if own_random else nullcontext()
    memory = patch(functorch, "activation_memory_budget", MEMORY_BUDGET) if recomputes else nullcontext()
    with random, memory:
        yield


@contextmanager
def patch_config(values: Mapping[str, Any]) -> Iterator[None]:
    """While entered, torch._inductor.config has these values. Raises `SubjectError` where this torch lacks one."""
    config: Any = importlib.import_module("torch._inductor.config")
    for name in values:
        if not hasattr(config, name):
            raise SubjectError(f"torch {torch.__version__} has no setting {name}")
    with config.patch(dict(values)):
        yield


@contextmanager
def _use_deterministic_algorithms(_value: Any) -> Iterator[None]:
    """While entered, torch raises where it has no deterministic algorithm: then `SubjectError` is raised."""
    try:
        with hold_state("torch's deterministic mode", _RAISES):
            yield
    except Exception as error:
        if "deterministic" in str(error):
            raise SubjectError(f"torch has no deterministic algorithm: {error}") from error
        raise


_RAISES = 2
"""torch's level that uses deterministic algorithms and raises where there is none."""
SWITCHES: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "use_deterministic_algorithms": _use_deterministic_algorithms,
    poison.POISON: poison.fill,
}
"""What enters settings that are none of Inductor's, by name."""


@contextmanager
def apply(settings: Mapping[str, Any]) -> Iterator[None]:
    """While entered, the settings of a case. Raises `SubjectError` where this torch lacks one."""
    with ExitStack() as stack:
        stack.enter_context(patch_config({name: settings[name] for name in settings.keys() - SWITCHES.keys()}))
        for name in settings.keys() & SWITCHES.keys():
            stack.enter_context(SWITCHES[name](settings[name]))
        yield


def reset_caches() -> None:
    """Drop what torch remembers of the programs compiled so far, so that a worker's memory doesn't grow with cases."""
    torch._dynamo.reset()
    if next(_resets) % CALLS_PER_COLLECTION:
        return
    for module, *path in _CACHES:
        found: Any = sys.modules.get(module)
        for name in path:
            found = getattr(found, name, None)
        if callable(found):
            found()
    _let_go_of_symbols()
    gc.collect()


#: Collecting costs some 10 ms once what start-up made is frozen.
CALLS_PER_COLLECTION = 8
_resets = itertools.count(1)

#: Caches torch._dynamo.reset leaves alone, keyed on shapes or on code objects, none of them bounded.
_CACHES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode", "cache_clear"),
    ("torch._dynamo.bytecode_transformation", "_cached_cleaned_instructions", "cache_clear"),
    ("torch.fx.graph_module", "_loader", "eval_cache", "clear"),
)


def _let_go_of_symbols() -> None:
    """Break cycles through symbolic sizes, which live in C++, where the collector doesn't see them."""
    kind = getattr(sys.modules.get("torch.fx.experimental.symbolic_shapes"), "ShapeEnv", None)
    for item in gc.get_objects():
        if type(item) is kind:
            for name in ("tracked_fakes", "fake_tensor_cache"):
                holder = getattr(item, name, None)
                if holder:
                    holder.clear()


def _switch_off(config: object, *names: str) -> None:
    for name in names:
        if hasattr(config, name):
            setattr(config, name, False)
