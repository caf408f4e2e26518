"""The end of every repro.py, read as text: a script copies `run`, `main` and the functions that its failure needs."""

import operator
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Module: Any = torch.nn.Identity
Accused: Any = Module
Plain: Any = Module  # with Python calls and loops in place of torch's
prepare: Callable[..., Any] | None = None
calls: Callable[..., Any] = lambda module: []

# A script defines the constants that its functions read.
NAMES: list[str] = []  # of the arguments
TRAINING = False
DEVICE = "cpu"
ACCUSED = "compiled"  # the results that are compared
BASELINE = "eager"  # the results that they are compared with; "float64" if eager is accused
DTYPE = torch.float32  # the least precise of the program
FACTOR = 10.0  # of the baseline's error, and
SHARE = 8 * torch.finfo(DTYPE).eps  # of the largest magnitude: an error up to their sum is rounding
EMPTY_ROWS: float | None = None  # the result for a row without a key; None: NaN in eager, so it does not count
IS_RANDOM = False  # runs draw their own dropout, so only NaN and infinity are wrong
RUNS = 0  # further runs, which have to give equal bits
STATE: list[str] = []  # of torch, which compiling has to keep
EARLIER: list[Any] = []  # programs that run first, each with the number of runs


def move(value, exact=None):  # in place and with its strides: a tensor that two calls get stays one tensor
    if exact or DEVICE != "cpu":
        flat = value.data.as_strided([value.untyped_storage().nbytes() // value.element_size()], [1], 0).to(DEVICE)
        flat = flat.double() if exact and flat.is_floating_point() else flat
        value.data = flat.as_strided(value.shape, value.stride(), value.storage_offset())
    return value


def run(make, prepare=None, look=lambda value: value.detach().clone(), exact=None):
    module = make().to(DEVICE).train(TRAINING)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(TRAINING)
    call, seen = None, {}
    for number, arguments in enumerate(calls(module), 1):
        if call is None:  # after the changes before a first call
            call = prepare(module) if prepare else module
        named = {name: move(value, exact) for name, value in zip(NAMES, arguments)}
        leaves = {**named, **dict(module.named_parameters())}
        constants = getattr(module, "without_gradient", [])
        for name, value in named.items() if torch.is_grad_enabled() else ():
            value.requires_grad_(value.is_floating_point() and name not in constants)
        with exact or nullcontext():
            out = call(*named.values())
            values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
            outs = [o for o in values.values() if o.requires_grad]
            if outs and torch.is_grad_enabled():
                torch.manual_seed(1)
                is_sum = getattr(module, "loss", "") == "sum"
                drawn = (o.new_ones(()).expand(o.shape) if is_sum else torch.randn(o.shape).to(o) for o in outs)
                torch.autograd.backward(outs, [*drawn])
                grad = lambda leaf: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                values |= {f"grad of {name}": grad(leaf) for name, leaf in leaves.items() if leaf.requires_grad}
        values |= {f"{name} afterwards": value for name, value in [*named.items(), *module.named_buffers()]}
        seen |= {f"call {number}: {name}" if number > 1 else name: look(value) for name, value in values.items()}
    return seen


def run_earlier():
    own = dict(globals())
    for define, runs in EARLIER:
        globals().update(define())
        for _ in range(runs):
            run(Accused, prepare)
    globals().update(own)


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


class Float64(torch.utils._python_dispatch.TorchDispatchMode):  # casts in the program become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(arg) for arg in args):
            kwargs["dtype"] = torch.float64
        double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        return torch.utils._pytree.tree_map(double, func(*args, **kwargs))


def has_wrong_values():
    with sdpa_kernel(SDPBackend.MATH):
        exact = run(Plain, exact=Float64())
    base = run(Plain) if BASELINE == "eager" else exact
    accused = run(Accused, prepare)
    again = [run(Accused, prepare) for _ in range(RUNS)]
    wrong = any(not torch.equal(one[n].nan_to_num(), v.nan_to_num()) for one in again for n, v in accused.items())
    print("runs on equal inputs differ\n" if wrong else "", end="")
    largest = lambda value: max(value.abs().nan_to_num(torch.inf, torch.inf).tolist(), default=0.0)
    top = max([largest(x[x.isfinite()]) for name, x in exact.items() if "grad of" in name], default=0.0)
    for name, x in exact.items():
        b, x, a = (value.double() for value in (base[name], x, accused[name]))
        if EMPTY_ROWS is not None:
            b, x, a = (value.nan_to_num(EMPTY_ROWS) for value in (b, x, a))
        counts = b.isfinite() & (x.abs() < 0.99 * torch.finfo(DTYPE).max)
        scale, off_base, off = (largest(value[counts]) for value in (x, b - x, a - x))
        limit = FACTOR * off_base + SHARE * (top if "grad of" in name else scale)
        is_wrong = off == torch.inf if IS_RANDOM else off > limit
        wrong |= is_wrong
        if is_wrong or "afterwards" not in name:
            words = f"error: {BASELINE} {off_base:.2g}, {ACCUSED} {off:.2g}{'; wrong' * is_wrong}"
            print(f"{name}: values up to {scale:.2g}; {words}")
    return wrong


def describe_forms(make, prepare=None):
    values, forms = run(make, prepare, look=lambda value: value), {}
    is_fake = lambda value: isinstance(value, torch._subclasses.FakeTensor)  # its storage has no address
    memory = {name: 0 if is_fake(value) else value.untyped_storage().data_ptr() for name, value in values.items()}
    owners = {memory[n]: f"that of {n.removesuffix(' afterwards')}" for n in values if "afterwards" in n}
    for name, value in values.items():
        # The dimensions from the outermost in memory to the innermost decide, and the strides are shown.
        order = sorted((d for d in range(value.dim()) if value.size(d) > 1), key=lambda d: (-value.stride(d), d))
        owner = owners.get(memory[name] or None, "its own")
        seen = {"dtype": value.dtype, "device": value.device, "shape": [*value.shape], "memory": owner}
        seen["structure"] = "FakeTensor" if is_fake(value) else "tensor"
        forms |= {f"{name}: {aspect}": (form, form) for aspect, form in seen.items()}
        forms[f"{name}: strides"] = (order, [*value.stride()])
    for name in STATE:
        forms[name] = (operator.attrgetter(name.removeprefix("torch."))(torch),) * 2
    return forms


def has_other_forms():
    eager, accused = describe_forms(Module), describe_forms(Accused, prepare)
    absent = (None, "absent")
    differing = [n for n in eager | accused if eager.get(n, absent)[0] != accused.get(n, absent)[0]]
    for name in differing:
        print(f"{name}: eager {eager.get(name, absent)[1]}, {ACCUSED} {accused.get(name, absent)[1]}")
    return bool(differing)


def raises():
    run(Module)
    try:
        run(Accused, prepare)
        if DEVICE != "cpu":
            torch.cuda.synchronize()  # raises the GPU's errors
    except Exception:
        traceback.print_exc()
        return True
    return False


def main(shows_bug):
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)
