"""scaled_dot_product_attention, FLASH_ATTENTION backend: nonfinite

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay finding.case.yaml --subject sdpa_flash
"""
import sys, traceback
from contextlib import nullcontext

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # the number of threads selects kernels and splits sums

import torch
from torch import nn

H, S, D = 2, 7, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, w, z):
        kt = w.transpose(-2, -1)
        products = x @ kt
        scores = products * 0.25
        weights = scores.softmax(dim=-1)
        out = weights @ z
        return out


def inputs():
    return [
        torch.randn((1, H, S, D), generator=rng(0)),
        torch.randn((1, H, S, D), generator=rng(1)),
        torch.randn((1, H, S, D), generator=rng(2)),
    ]


class WithKernel(Module):
    def forward(self, x, w, z):
        out = nn.functional.scaled_dot_product_attention(x, w, z, scale=0.25)
        return out


# The program ends here. The rest runs it.
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False):
    module = (module.double() if exact else module).train(False)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if isinstance(module, WithKernel) else nullcontext():
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {n: v.detach() for n, v in values.items()}


def shows_bug():
    eager, exact, kernel, wrong = run(Module()), run(Module(), exact=True), run(WithKernel()), False
    largest = lambda v: max(v.abs().nan_to_num(torch.inf).tolist(), default=0.0)
    for name, e in eager.items():
        e, x, c = e.double(), exact[name].double(), kernel[name].double()
        counts = e.isfinite() & x.isfinite()
        scale, off_eager, off = (largest(v[counts]) for v in (x, e - x, c - x))
        # Eager's error may be small by luck: 8 units in the last place of the largest value count as no error.
        is_wrong = off > 10 * off_eager + 8 * torch.finfo(torch.float32).eps * scale
        wrong |= is_wrong
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}{'; wrong' * is_wrong}")
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)
