"""Subjects with a known fault, given to workers as `tests.check.planted:name`."""

import inspect
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[..., Any]


def _changing(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Call]:
    return lambda module: lambda *inputs: change(module(*inputs))


def _zeroed_row(out: Tensor) -> Tensor:
    keep = torch.ones_like(out)
    keep[0, 0, 3] = 0
    return out * keep


def _with_nan(out: Tensor) -> Tensor:
    return out.index_fill(-1, torch.tensor([2]), float("nan"))


def closes_descriptors(module: nn.Module) -> Call:
    """Closes all file descriptors, as a careless daemon does."""

    def run(*inputs: Tensor) -> Any:
        os.closerange(0, 1024)
        return module(*inputs)

    return run


@torch.library.custom_op("planted::die", mutates_args=())
def _die(value: Tensor, *, later: bool = False) -> Tensor:
    if not later:
        os.kill(os.getpid(), signal.SIGSEGV)
    return value.clone()


_die.register_fake(lambda value, **_: torch.empty_like(value))
_die.register_autograd(lambda _, gradient: _die(gradient))
dies = _changing(lambda _: os.kill(os.getpid(), signal.SIGSEGV))  # type: ignore[arg-type,return-value]
zeroed_row = _changing(_zeroed_row)
nan_column = _changing(_with_nan)
one_ulp_up = _changing(lambda out: torch.nextafter(out, torch.full_like(out, float("inf"))))
double = _changing(lambda out: out.double())
transposed = _changing(lambda out: out.transpose(-2, -1))
relaid = _changing(lambda out: out.transpose(1, 2).contiguous().transpose(1, 2))
finite = _changing(torch.nan_to_num)


def wrong_gradient(module: nn.Module) -> Call:
    """Right forward, half the gradient of the first input."""

    def run(first: Tensor, *rest: Tensor) -> Any:
        return module(first.detach() * 0.5 + first * 0.5, *rest)

    return run


def overwrites_input(module: nn.Module) -> Call:
    """Changes its first input as a kernel does that writes through a pointer: no version is counted up."""

    def run(first: Tensor, *rest: Tensor) -> Any:
        out = module(first, *rest)
        first.data[0] += 1
        return out

    return run


def reseeded(module: nn.Module) -> Call:
    """Draws other random numbers than eager does."""

    def run(*inputs: Tensor) -> Any:
        torch.rand(1)
        return module(*inputs)

    return run


def in_a_tuple(module: nn.Module) -> Call:
    """Returns one tensor in a tuple."""
    return lambda *inputs: (module(*inputs),)


def in_an_input(module: nn.Module) -> Call:
    """Returns its first argument, with the result written into it."""
    return lambda first, *others: first.copy_(module(first, *others))


def restless(module: nn.Module) -> Call:
    """Another result at every call, by an ulp or two."""
    count = itertools.count()
    return lambda *inputs: module(*inputs) * (1 + next(count) * 2.0**-22)


def hungry(module: nn.Module) -> Call:
    """Asks for 64 GiB."""
    return lambda *inputs: torch.zeros(1 << 34).add_(1) + module(*inputs)


def failing(module: nn.Module) -> Call:
    """Raises when it runs."""

    def run(*inputs: Tensor) -> Any:
        raise ValueError(f"no kernel for {inputs[0].dtype}\nand more that nobody reads")

    return run


def talking(module: nn.Module) -> Call:
    """Prints, as compilers do."""

    def run(*inputs: Tensor) -> Any:
        print("this is no protocol")  # noqa: T201
        return module(*inputs)

    return run


def _unless_casts_are_kept(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Call]:
    def compiled(module: nn.Module) -> Call:
        kept = torch._inductor.config.emulate_precision_casts
        return module if kept else lambda *inputs: change(module(*inputs))

    return compiled


elides = _unless_casts_are_kept(lambda out: out * 1.5)


def skips_a_cast(module: nn.Module) -> Call:
    """Of y - y, y = 1.1 q, one y is not rounded unless casts are kept."""
    import torch._inductor.config as inductor

    def run(q: Tensor, _k: Tensor, _v: Tensor) -> Tensor:
        wide = q.float() * 1.1
        rounded = wide.to(q.dtype).float()
        return (rounded - rounded if inductor.emulate_precision_casts else wide - rounded).to(q.dtype)

    return run


elides_into_nan = _unless_casts_are_kept(_with_nan)
_compilations = itertools.count()


def elides_once(module: nn.Module) -> Call:
    """Wrong in the first compilation of a process and in no other."""
    return zeroed_row(module) if next(_compilations) == 0 else module


def _relu_bug(form: str) -> Callable[[nn.Module], Call]:
    options: dict[str, str | int | bool | Callable[..., Any]] = {"cpp.inject_relu_bug_TESTING_ONLY": form}
    return lambda module: torch.compile(module, options=options)


relu_accuracy = _relu_bug("accuracy")
relu_compile_error = _relu_bug("compile_error")
relu_runtime_error = _relu_bug("runtime_error")

SUBJECTS = tuple(
    f"{__name__}:{name}"
    for name, value in list(globals().items())
    if not name.startswith("_") and getattr(value, "__module__", "") == __name__
)


def forks(module: nn.Module) -> Call:
    """The module; the process that this forks goes on as the worker does."""
    os.fork()
    return module


def reads_standard_input(module: nn.Module) -> Call:
    """The module, after reading all that there is to read."""
    os.read(0, 1 << 20)
    return module


# Each promises all that torch.compile does.
_DROP_IN = {"modes": ("inference", "training"), "state": True, "random": True, "strides": True}
for _fault in [*vars().values()]:
    if inspect.isfunction(_fault) and [*inspect.signature(_fault).parameters] == ["module"]:
        _fault.capabilities = _DROP_IN  # type: ignore[attr-defined]
