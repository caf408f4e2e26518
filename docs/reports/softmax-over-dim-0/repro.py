"""[Inductor][CPU] attention with softmax over dim 0: compiled off by 0.53, eager by 3e-08 (float64), values up to 0.89

Exits 0 without the bug, 1 with it, 125 if it can't run. TORCH_COMPILE_BACKEND names the backend; by default it is inductor.
"""
import os, sys
from contextlib import nullcontext

try:
    import torch
except Exception as error:
    sys.exit(print(f"this can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        turned = y.transpose(-2, -1)
        product = x @ turned
        scaled = product / 1.0
        probs = scaled.softmax(dim=0)
        out = probs @ y
        return out


def inputs():
    return [
        torch.randn((1, T), generator=rng(0)),
        torch.randn((1, 1, T, T), generator=rng(1)),
    ]


# The program ends here; what follows runs it in eager, in float64 and compiled, and compares.
from torch._dynamo.utils import same
from torch._inductor import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
config.fallback_random = True
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


class Float64(TorchDispatchMode):  # for the reference: casts to lower precision become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(a) for a in args):
            kwargs = {**kwargs, "dtype": torch.float64}
        return tree_map(double, func(*args, **kwargs))


def run(backend=None, exact=False):
    module, args = Module().train(False), inputs()
    if exact:
        module, args = module.double(), [double(a) for a in args]
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    with torch.set_grad_enabled(False), Float64() if exact else nullcontext():
        out = call(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    torch._dynamo.reset()
    eager, exact, good = run(), run(exact=True), True
    compiled = run(BACKEND)
    for name, e in eager.items():
        c, x = compiled[name].double(), exact[name].double()
        agrees = same(e, compiled[name], fp64_ref=exact[name], equal_nan=True)
        precision = torch.finfo(e.dtype).eps ** 0.5 if e.is_floating_point() else 0.0
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        # `same` averages over the tensor; a single wrong row can escape it.
        good &= agrees and off <= max(32 * off_eager, precision * scale)
        print(f"{name:20} up to {scale:.2g}; off float64: eager {off_eager:.2g}, {BACKEND} {off:.2g}; same: {agrees}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
