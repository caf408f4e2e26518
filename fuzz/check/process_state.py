"""State that a whole process shares and no subject may change: compared around its calls, put back, and told."""

import builtins
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import backends

from fuzz.check.torch_internals import find
from fuzz.protocol.failures import StateChange

_SHOWN = 60
"""Characters of a value that are told."""
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
}
"""Where names keep their values. Names may be added: torch itself does that when a part of it is first used."""


def _put_precisions(values: list[str]) -> None:
    # torch refuses to read the older flags where the newer ones alone are set.
    torch.set_float32_matmul_precision("high" if values[0] == "tf32" else "highest")
    backends.cudnn.allow_tf32 = values[1] == "tf32"
    for owner, value in zip(_PRECISIONS, values, strict=True):
        owner.fp32_precision = value


def _put_flag(path: str, value: bool) -> None:
    owner, _, name = path.rpartition(".")
    setattr(attrgetter(owner)(backends), name, value)


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "torch's function modes": (find("torch._C", "_len_torch_function_stack") or int, int),
    "torch's dispatch modes": (find("torch._C", "_len_torch_dispatch_stack") or int, int),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's inference mode": (torch.is_inference_mode_enabled, bool),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch's anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "torch's precision of float32": (lambda: [one.fp32_precision for one in _PRECISIONS], _put_precisions),
    "torch's fast path": (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
    "flushing of denormals": (lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    "the current directory": (os.getcwd, os.chdir),
    "the interval timer": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda _: signal.setitimer(0, 0)),
    "sys.path": (lambda: list(sys.path), partial(sys.path.__setitem__, slice(None))),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    **{f"torch.backends.{path}": (partial(attrgetter(path), backends), partial(_put_flag, path)) for path in _FLAGS},
    **{f"the handler of {one.name}": (partial(signal.getsignal, one), partial(signal.signal, one)) for one in _SIGNALS},
}
"""How each is read and put back, if it can be. Random numbers may be drawn, as every run is seeded."""
for _name in ("flash", "mem_efficient", "math", "cudnn"):
    _functions = (getattr(backends.cuda, f"{_name}_sdp_enabled"), getattr(backends.cuda, f"enable_{_name}_sdp"))
    STATES[f"torch.backends.cuda.enable_{_name}_sdp"] = _functions
for _name in ("cpu", "cuda"):
    _functions = (partial(torch.is_autocast_enabled, _name), partial(torch.set_autocast_enabled, _name))
    STATES[f"torch's autocast on {_name}"] = _functions

_found: dict[str, StateChange] = {}


@contextmanager
def restore_state() -> Iterator[None]:
    """Within it, state may change: it is put back at the end, and `take_changes` tells what it was.

    Not told is what changes while modules are imported, as libraries set up their process then: they may add variables
    of the environment, and nothing else stays. Filters of warnings are never told.
    """
    before, modules = read_state(), len(sys.modules)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        _put_back(*before, told=len(sys.modules) == modules)


def take_changes() -> tuple[StateChange, ...]:
    """What changed since the last time, state by state."""
    changes = tuple(_found.values())
    _found.clear()
    return changes


def read_state() -> tuple[list[Any], list[dict[str, Any]], dict[bytes, bytes]]:
    """The values of `STATES`, of names, and of the environment."""
    # The interface of os.environ decodes each variable, which takes longer than all else here.
    environment: dict[bytes, bytes] = dict(getattr(os.environ, "_data"))  # noqa: B009
    return list(map(_read, STATES)), list(map(_list_names, _NAMESPACES.values())), environment


def _read(state: str) -> Any:
    try:
        return STATES[state][0]()
    except (RuntimeError, OSError):  # such as the current directory, removed
        return None


def _list_names(home: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for one in reversed(home.__mro__) if isinstance(home, type) else (home,):
        names.update(vars(one).copy())
    return names


def _put_back(
    states: list[Any], namespaces: list[dict[str, Any]], environment: dict[bytes, bytes], *, told: bool
) -> None:
    # What one state takes with it is put back with it: each is read again when its turn comes.
    for state, was in zip(STATES, states, strict=True):
        now = _read(state)
        if was != now:
            with suppress(Exception):
                STATES[state][1](was)
            _record(state, was, now, is_restored=was == _read(state), told=told)
    for (place, home), names in zip(_NAMESPACES.items(), namespaces, strict=True):
        after = _list_names(home)
        for name in (name for name, was in names.items() if after.get(name, names) is not was):
            setattr(home, name, names[name])
            _record(f"{place}.{name}", names[name], after.get(name, "nothing"), told=told)
    now = read_state()[2]
    for key in (key for key in {**environment, **now} if now.get(key) != environment.get(key)):
        if key in environment:
            os.environb[key] = environment[key]
        elif told:
            del os.environb[key]
        # Values may be secrets.
        texts = ("a value" if key in environment else "nothing", "another value" if key in now else "nothing")
        _record(f"the environment variable {os.fsdecode(key)}", *texts, told=told)


def _record(state: str, was: object, now: object, *, told: bool, is_restored: bool = True) -> None:
    if told or not is_restored:
        _found.setdefault(state, StateChange(state, _show(was), _show(now), is_restored))


def _show(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    text = str(value) if name is None else ".".join(filter(None, [getattr(value, "__module__", None), name]))
    return text[:_SHOWN]
