"""scaled_dot_product_attention on CUDA gives NaN for a scale of 0 or less (cuDNN and flash backends)

Compiles nothing.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import sys
from contextlib import nullcontext

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
import torch.nn.functional as F
from torch import nn

B, H, S, T, D = 1, 2, 8, 16, 32


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, scale=0.0)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)).to(torch.float16),
        torch.randn((B, H, T, D), generator=rng(1)).to(torch.float16),
        torch.randn((B, H, T, D), generator=rng(2)).to(torch.float16),
    ]


# The program ends here; what follows runs it and compares with float64.
from torch.nn.attention import SDPBackend, sdpa_kernel
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False, unfused=False):
    module = module.to("cuda").train(False)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [(double(a) if exact else a).to("cuda") for a in inputs()]
    math = sdpa_kernel(SDPBackend.MATH) if exact or unfused else nullcontext()
    with math:
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    unfused = run(Module(), unfused=True)  # eager without fused attention
    exact = {name: x for name, x in exact.items() if x.is_floating_point() and x.numel()}
    top = max(x.abs().nan_to_num(0.0, 0.0, 0.0).max() for x in exact.values())
    for name, x in exact.items():
        e = eager[name]
        defined = x.abs() < torch.finfo(e.dtype).max * 0.99  # neither NaN nor beyond the dtype's range
        error = lambda v: (v.double() - x).abs().nan_to_num(torch.inf).where(defined, 0.0)
        size = x.abs().where(defined, 0.0)
        size = size.amax(-1, keepdim=True) + size.max() / 4 if x.dim() else size
        wrong = defined & ~e.isfinite()
        wrong |= error(e) > 0.05 * size + torch.finfo(e.dtype).eps * top  # of a row's size
        good &= not wrong.any()
        print(f"{name}: values up to {x.abs().where(defined, 0.0).max():.2g}; error: eager {error(e).max():.2g}"
              f", MATH backend {error(unfused[name]).max():.2g}"
              f"; {int(wrong.sum())} of {wrong.numel()} elements are wrong")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
