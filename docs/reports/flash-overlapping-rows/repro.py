"""scaled_dot_product_attention on CPU writes a wrong result for a query whose rows overlap in memory (flash backend)

Runs the module in float64, in eager, and with sdpa_flash.
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
from torch import nn

S, D = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, k):
        q = x.unfold(2, D, 1)
        kt = k.transpose(-2, -1)
        products = q @ kt
        scores = products * 0.5
        weights = scores.softmax(dim=-1)
        out = weights @ k
        return out


def inputs():
    return [
        torch.randn((1, 1, D + S - 1), generator=rng(0)),
        torch.randn((1, 1, 1, D), generator=rng(1)),
    ]


class WithKernel(Module):
    def forward(self, x, k):
        q = x.unfold(2, D, 1)
        out = nn.functional.scaled_dot_product_attention(q, k, k, scale=0.5)
        return out


# The program ends here; what follows runs it and compares with float64.
from torch.nn.attention import SDPBackend, sdpa_kernel
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False):
    module = module.train(False)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    backend = sdpa_kernel([SDPBackend.FLASH_ATTENTION]) if isinstance(module, WithKernel) else nullcontext()
    with backend:
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
        # Eager may be exact by luck: 8 eps of the largest magnitude are no error.
        good &= bool(off <= 10 * off_eager + 8 * torch.finfo(torch.float32).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
