"""Control experiments as subjects: `triage.attribution.subjects:passes.constants_compared` is the subject `passes` under that control.
Run in a worker: standard library and torch only."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fuzz.check import settings
from fuzz.check.subjects import Subject, SubjectError, find
from triage.attribution import constants, switches

Compile = Callable[[nn.Module, bool], Callable[..., Any]]


def _torch_compile(**how: Any) -> Compile:
    return lambda module, dynamic: torch.compile(module, dynamic=dynamic, **how)


BASES: dict[str, Compile] = {
    "aot_eager_decomp_partition": _torch_compile(backend="aot_eager_decomp_partition"),
    "reduce_overhead": _torch_compile(mode="reduce-overhead"),
    "max_autotune": _torch_compile(mode="max-autotune"),
    "passes_dynamic": lambda module, _dynamic: find("passes").compile(module, True),
}


def _math() -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


CONTROLS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "pattern_matcher_off": lambda: switches.configured(pattern_matcher=False),
    "casts_emulated": lambda: switches.configured(emulate_precision_casts=True),
    "watched": switches.watching,
    "constants_compared": constants.compared,
    "attention_off": lambda: switches.without(lambda name: "sfdp" in name),
    "mask_added": lambda: switches.sdpa_called(switches.mask_added),
    "mask_expanded": lambda: switches.sdpa_called(switches.mask_expanded),
    "operands_expanded": lambda: switches.sdpa_called(switches.operands_expanded),
    "scale_as_tensor": lambda: switches.sdpa_called(switches.scale_as_tensor),
    "operands_copied": lambda: switches.sdpa_called(switches.operands_copied),
    "by_steps": lambda: switches.sdpa_called(switches.by_steps),
    "math": _math,
    "unfused": switches.unfused,
    "unvectorised": lambda: switches.configured(cpp__simdlen=1),
    "tf32": settings.tf32_allowed,
}

_LAUNCH = re.compile(r"(.+)\.(tile|warps|stages)_(\d+(?:_\d+)?)")
_SFDP = re.compile(r"(without|only)_sfdp_(\d+)")


def __getattr__(name: str) -> Subject:
    if name.startswith("__"):
        raise AttributeError(name)
    launched = _LAUNCH.fullmatch(name)
    if launched:
        return _launched(name, launched[1], launched[2], [int(number) for number in launched[3].split("_")])
    base, _, control = name.partition(".")
    compile_ = BASES.get(base)
    try:
        known = None if compile_ is not None else find(base)
    except SubjectError as error:
        raise AttributeError(str(error)) from error
    if known is not None and known.attention is not None:
        raise AttributeError(f"{base} computes attention alone; controls are for compilers")
    compiled = compile_ or (known.compile if known is not None else None)
    assert compiled is not None
    random = base.endswith("_random")
    tf32 = control == "tf32" or (known is not None and known.tf32)
    return Subject(f"{__name__}:{name}", compiled, tf32=tf32, under=_under(control, random=random))


def _launched(name: str, function: str, what: str, numbers: list[int]) -> Subject:
    """An attention function with other tiles, warps or stages than it chooses."""
    try:
        subject = find(function)
    except SubjectError as error:
        raise AttributeError(str(error)) from error
    attention = subject.attention
    if attention is None:
        raise AttributeError(f"{function} computes no attention: it has no {what}")

    def loaded() -> Callable[..., Any]:
        original = attention.loaded().function
        if what == "tile":
            return switches.tiled(original, (numbers[0], numbers[1]))
        return switches.scheduled(original, {f"num_{what}": numbers[0]})

    return Subject(f"{__name__}:{name}", attention=replace(attention, load=loaded))


def _under(control: str, *, random: bool) -> Callable[[], AbstractContextManager[None]]:
    controls = [_control(name) for name in control.split("+") if name]

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            if random:
                stack.enter_context(settings.own_random_stream())
            for made in controls:
                stack.enter_context(made())
            yield

    return entered


def _control(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """The control of that name. Raises AttributeError."""
    if name in CONTROLS:
        return CONTROLS[name]
    sfdp = _SFDP.fullmatch(name)
    if sfdp:
        named = re.compile(rf"_?sfdp_pattern_{sfdp[2]}(?!\d)")
        if sfdp[1] == "only":
            return lambda: switches.without(lambda rewrite: "sfdp" in rewrite and not named.match(rewrite))
        return lambda: switches.without(lambda rewrite: bool(named.match(rewrite)))
    if name.startswith("without_"):
        return lambda: switches.without(lambda rewrite: rewrite == name.removeprefix("without_"))
    if name.startswith("eager_"):
        return lambda: switches.left_to_eager(name.removeprefix("eager_"))
    raise AttributeError(f"there is no control {name!r}")
