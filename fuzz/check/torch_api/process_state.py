"""State of the whole process that no subject may change. It is compared around calls, restored and reported."""

import builtins
import gc
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from functools import partial
from operator import attrgetter, is_
from pathlib import Path
from typing import Any

import torch
from torch import backends
from torch.autograd import forward_ad

from fuzz.check.torch_api import compilation
from fuzz.check.torch_api.torch_internals import find, require
from fuzz.protocol.failures import StateChange

_SHOWN = 60
"""Characters of a value that are reported."""
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGALRM, signal.SIGTERM, signal.SIGCHLD)
_PRECISIONS: Any = (*attrgetter("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul")(backends), backends)
_FLAGS = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
)
_NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": torch.nn.Module,
    "builtins": builtins,
    "sys": sys,
    **{name: importlib.import_module(name) for name in ("torch._inductor.config", "torch._dynamo.config")},
}
"""Namespaces whose names must keep their values. Names may be added: torch does so when a part is first used."""
# The first compilation in a process wraps nn.Module's __init__ and __setstate__ for good, and never does it again.
require("torch._dynamo.mutation_guard", "install_generation_tagging_init")()


def _put_precisions(values: list[str]) -> None:
    # torch refuses to read the older flags if only the newer flags are set.
    torch.set_float32_matmul_precision("high" if values[0] == "tf32" else "highest")
    backends.cudnn.allow_tf32 = values[1] == "tf32"
    for owner, value in zip(_PRECISIONS, values, strict=True):
        owner.fp32_precision = value


def _put_flag(path: str, value: bool) -> None:
    owner, _, name = path.rpartition(".")
    setattr(attrgetter(owner)(backends), name, value)


def _put_determinism(level: int) -> None:
    # Unlike `set_deterministic_debug_mode`, this function also sets Inductor's option.
    torch.use_deterministic_algorithms(level > 0, warn_only=level == 1)


def _enter(guard: Any) -> None:
    """Enter a context of torch's and never leave it: a guard that is destroyed puts back what it found."""
    guard.__enter__()
    _entered.append(guard)


def _is_dual() -> bool:
    """Whether the level of forward derivatives is open. torch allows one, and tells of it by refusing another."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=level)
    return False


def _put_dual(value: bool) -> None:
    if not value:
        torch._C._exit_dual_level(level=0)
        forward_ad._current_level = -1


def _read_dispatch_keys() -> list[tuple[int, str]]:
    """The dispatch keys that this thread includes, and those that it excludes, as bits and as text.

    The text leaves out AutogradFunctionality, without which no result has a gradient.
    """
    sets = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
    return [(one.raw_repr(), str(one)) for one in sets]


def _put_dispatch_keys(keys: list[tuple[int, str]]) -> None:
    if keys != _read_dispatch_keys():
        _enter(torch._C._ForceDispatchKeyGuard(*(torch._C.DispatchKeySet.from_raw_repr(bits) for bits, _ in keys)))


def _put_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _read_streams() -> list[str]:
    links = [Path(f"/proc/self/fd/{number}") for number in range(3)]
    return [str(link.readlink()) if link.is_symlink() else "closed" for link in links]


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "torch's function modes": (find("torch._C", "_len_torch_function_stack") or int, int),
    "torch's dispatch modes": (find("torch._C", "_len_torch_dispatch_stack") or int, int),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's inference mode": (torch.is_inference_mode_enabled, lambda value: _enter(torch._C._InferenceMode(value))),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (torch.get_deterministic_debug_mode, _put_determinism),
    "torch's anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "torch's precision of float32": (lambda: [one.fp32_precision for one in _PRECISIONS], _put_precisions),
    "torch's fast path": (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
    "flushing of denormals": (lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    "the standard streams": (_read_streams, bool),
    "the current directory": (os.getcwd, os.chdir),
    "the interval timer": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda _: signal.setitimer(0, 0)),
    "sys.path": (lambda: list(sys.path), partial(sys.path.__setitem__, slice(None))),
    "the stance of torch.compile": (
        partial(find, "torch._dynamo.eval_frame", "_stance"),
        find("torch._dynamo.eval_frame", "_set_stance") or bool,
    ),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    **{f"torch.backends.{path}": (partial(attrgetter(path), backends), partial(_put_flag, path)) for path in _FLAGS},
    **{name: (partial(os.environ.get, name), partial(_put_variable, name)) for name in compilation.VARIABLES},
    **{f"the handler of {one.name}": (partial(signal.getsignal, one), partial(signal.signal, one)) for one in _SIGNALS},
}
"""Functions that read and restore each state. The random state is not listed, since every run is seeded."""
for _name in ("flash", "mem_efficient", "math", "cudnn"):
    _functions = (getattr(backends.cuda, f"{_name}_sdp_enabled"), getattr(backends.cuda, f"enable_{_name}_sdp"))
    STATES[f"torch.backends.cuda.enable_{_name}_sdp"] = _functions
for _name in ("cpu", "cuda"):
    _functions = (partial(torch.is_autocast_enabled, _name), partial(torch.set_autocast_enabled, _name))
    STATES[f"torch's autocast on {_name}"] = _functions
STATES["torch.func's open transforms"] = (
    find("torch._C._functorch", "get_dynamic_layer_stack_depth") or int,
    find("torch._C._functorch", "pop_dynamic_layer_stack_and_undo_to_depth") or int,
)
STATES["the level of forward derivatives"] = (_is_dual, _put_dual)
# Last, since other states are dispatch keys too: this reports changes that they do not.
STATES["torch's dispatch keys"] = (_read_dispatch_keys, _put_dispatch_keys)

_UNSET: Any = find("torch.utils._config_module", "_UNSET_SENTINEL") or object()
"""The value of a compiler's option that has its default."""
_PLAIN = (bool, int, float, str, tuple, list, dict, set)

_entered: list[Any] = []
_FIRST_KEYS = _read_dispatch_keys()
_raised = set[str]()  # "call", "case": a call has raised since garbage was last collected before a call, a case
_found: dict[str, StateChange] = {}
_found_by_error = set[str]()


class Ended(Exception):
    """A function raised `SystemExit` or `KeyboardInterrupt`, which is the cause."""


@contextmanager
def hold_state(state: str, value: Any) -> Iterator[None]:
    read, put = STATES[state]
    before = read()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def restore_state() -> Iterator[None]:
    """Restores state on exit. `take_changes` returns the changes. An exception that ends programs becomes `Ended`.

    If modules are imported inside, their libraries may set up the process. Only two kinds of changes
    are then reported: of compiler options that had been set, and changes that can't be undone. Warning filters are
    restored and never reported.
    """
    collect_garbage()
    before, modules, has_raised = read_state(), len(sys.modules), True
    try:
        with warnings.catch_warnings():
            yield
        has_raised = False
    except (KeyboardInterrupt, SystemExit) as error:
        raise Ended from error
    finally:
        if has_raised:
            _raised.update(("call", "case"))
        is_import = not all(map(_is_generated, list(sys.modules.values())[modules:]))
        for change in _put_back(*before, is_import=is_import):
            if has_raised and change.state not in _found:
                _found_by_error.add(change.state)
            _found.setdefault(change.state, change)


def collect_garbage(before: str = "call") -> None:
    """Destroy what calls that raised have left, before another call. An exception may last until its case has ended.

    Guards of torch's that are destroyed then put back what they found: in torch 2.13, those of transforms set the
    thread's dispatch keys, so that torch refuses later transforms, or computes without gradients.
    """
    if before in _raised:
        _raised.difference_update((before, "call"))
        state = read_state()
        gc.collect()
        for _ in _put_back(*state, is_import=False):
            pass


def begin_case() -> None:
    """Give this thread the dispatch keys that it began with."""
    collect_garbage("case")
    _put_dispatch_keys(_FIRST_KEYS)


def take_changes() -> tuple[tuple[StateChange, ...], tuple[StateChange, ...]]:
    """The changes, and those that calls made before another call raised: they may be why."""
    changes = tuple(_found.values())
    earlier = tuple(change for change in changes if change.state not in _found_by_error)
    _found.clear()
    _found_by_error.clear()
    return changes, earlier


def read_state() -> tuple[list[Any], list[dict[str, Any]]]:
    return list(map(_read, STATES)), list(map(_list_names, _NAMESPACES.values()))


def _is_generated(module: Any) -> bool:
    directory = require("torch._inductor.runtime.cache_dir_utils", "cache_dir")()
    return str(getattr(module, "__file__", None)).startswith(f"{directory}{os.sep}")


def _read(state: str) -> Any:
    try:
        return STATES[state][0]()
    except (RuntimeError, OSError):  # such as the current directory, removed
        return None


def _list_names(home: Any) -> dict[str, Any]:
    if "_config" in vars(home):
        options: dict[str, Any] = dict.fromkeys(home._config, _UNSET)
        for name, entry in home._config.items():
            value = entry.user_override
            if value.__class__ is ContextVar:  # from torch 2.13 on
                value = value.get()
            if value is not _UNSET:
                options[name] = _normalise_option(entry, value)
        return options
    names: dict[str, Any] = {}
    for one in reversed(home.__mro__) if isinstance(home, type) else (home,):
        names.update(vars(one).copy())
    return names


def _normalise_option(entry: Any, value: Any) -> Any:
    # Compilers set options to their defaults. Reading a list does too, and the list can then change.
    default = entry.default if entry.env_value_default is _UNSET else entry.env_value_default
    return _UNSET if _is_same(value, default) else copy(value) if isinstance(value, _PLAIN) else value


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other))


def _put_back(states: list[Any], namespaces: list[dict[str, Any]], *, is_import: bool) -> Iterator[StateChange]:
    # Restoring a state may restore others, so each is read when its turn comes.
    for state, was in zip(STATES, states, strict=True):
        now = _read(state)
        if was != now:
            with suppress(Exception):
                STATES[state][1](was)
            is_restored = was == _read(state)
            if not (is_import and is_restored):
                yield StateChange(state, _show(was), _show(now), is_restored)
    for (place, home), names in zip(_NAMESPACES.items(), namespaces, strict=True):
        after = _list_names(home)
        if all(map(is_, names.values(), after.values())) and len(names) == len(after):
            continue
        for name in (name for name, was in names.items() if after.get(name, names) is not was):
            if _is_same(after.get(name), names[name]):
                continue
            setattr(home, name, names[name])
            is_chosen = "_config" in vars(home) and names[name] is not _UNSET
            if is_chosen or not is_import:
                yield StateChange(f"{place}.{name}", _show(names[name]), _show(after.get(name, "nothing")))


def _show(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    text = str(value) if name is None else ".".join(filter(None, [getattr(value, "__module__", None), name]))
    return "its default" if value is _UNSET else text[:_SHOWN]
