"""scaled_dot_product_attention on CUDA: a bias with one column for all keys is read past its end: wrong result, NaN or misaligned address (cuDNN backend, the default choice on an H100)

Runs the module in float64, in eager, and with sdpa_cudnn.
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

B, H, S, T, D, V = 3, 4, 5, 2, 8, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v, bias):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        scores2 = scores + bias
        probs = scores2.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)).to(torch.float16),
        torch.randn((B, H, T, D), generator=rng(1)).to(torch.float16),
        torch.randn((B, H, T, V), generator=rng(2)).to(torch.float16),
        torch.randn((1,), generator=rng(3)).to(torch.float16),
    ]


class WithKernel(Module):
    def forward(self, q, k, v, bias):
        out = nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0, attn_mask=bias[None, None, None])
        return out


# The program ends here; what follows runs it and compares with float64.
from torch.nn.attention import SDPBackend, sdpa_kernel
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False):
    module = module.to("cuda").train(False)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [(double(a) if exact else a).to("cuda") for a in inputs()]
    backend = sdpa_kernel([SDPBackend.CUDNN_ATTENTION]) if isinstance(module, WithKernel) else nullcontext()
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
        good &= bool(off <= 4 * off_eager + 8 * torch.finfo(torch.float16).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
