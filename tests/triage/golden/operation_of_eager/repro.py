"""[CPU] scaled_dot_product_attention with a negative scale and is_causal: eager gives NaN or inf, float64 is finite (aten._scaled_dot_product_flash_attention_for_cpu)

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay finding.case.yaml --subject eager
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
import torch.nn.functional as F
from torch import nn

B, H, S, D = 2, 4, 8, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((B, H, S, D), generator=rng(2)),
    ]


# The program ends here. The rest runs it.
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False):
    module = (module.double() if exact else module).train(False)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    with sdpa_kernel(SDPBackend.MATH) if exact else nullcontext():
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {n: v.detach() for n, v in values.items()}


def shows_bug():
    eager, exact, wrong = run(Module()), run(Module(), exact=True), False
    largest = lambda v: max(v.abs().nan_to_num(torch.inf).tolist(), default=0.0)
    for name, e in eager.items():
        e, x, c = e.double(), exact[name].double(), eager[name].double()
        counts = x.abs() < torch.finfo(torch.float32).max * 0.99
        scale, off_eager, off = (largest(v[counts]) for v in (x, e - x, c - x))
        is_wrong = off > 0.0005 * scale
        wrong |= is_wrong
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}{'; wrong' * is_wrong}")
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)
