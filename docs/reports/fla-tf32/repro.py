"""attention kernel kernels.adapters.fla:attention: wrong result

Runs the module in float64, in eager, and with kernels.adapters.fla:attention. Exits with 0 without the bug, 125 if it can't
run, 1 with the bug: where float64 and eager are finite, an error is more than 10 times eager's largest plus 8 eps of
float32 times the largest magnitude of its tensor.
"""
import os, sys
from contextlib import nullcontext

sys.path.insert(0, os.getcwd())
try:
    import torch
    from kernels.adapters.fla import attention as attend
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}; run it where kernels.adapters.fla can be imported", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        kt = x.transpose(-2, -1)
        scores = x @ kt
        ones = torch.ones((1, 1), dtype=torch.bool, device=x.device)
        triu = ones.triu(1)
        scores2 = scores.masked_fill(triu, float("-inf"))
        probs = scores2.softmax(dim=-1)
        out = probs @ x
        return out


def inputs():
    return [
        torch.randn((1, 1, 1, 1), generator=rng(0)),
    ]


class WithKernel(Module):
    def forward(self, x):
        out = attend(x, x, x, scale=1.0, causal="top_left")
        return out


# The program ends here; what follows runs it and compares with float64.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


class Float64(TorchDispatchMode):  # for the reference: casts to lower precision become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(a) for a in args):
            kwargs = {**kwargs, "dtype": torch.float64}
        return tree_map(double, func(*args, **kwargs))


def run(module, exact=False):
    module, args = module.to("cuda").train(False), [a.to("cuda") for a in inputs()]
    if exact:
        module, args = module.double(), [double(a) for a in args]
    torch.manual_seed(0)
    casts = Float64() if exact else nullcontext()
    with torch.set_grad_enabled(False), casts:
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    kernel = run(WithKernel())
    for name, e in eager.items():
        x, c = exact[name].double(), kernel[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        good &= bool(off <= 10 * off_eager + 8 * torch.finfo(torch.float32).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
