"""[Inductor][CPU] attention with softmax over dim -2: output 0 is off by up to 0.97 from float64, eager by 2.2e-07

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
TORCH_COMPILE_BACKEND names the backend, by default inductor.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay finding.case.yaml --subject inductor
"""
import os, sys, traceback

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # the number of threads selects kernels and splits sums

import torch
from torch import nn

B, H, S, D = 2, 4, 8, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        products = q @ kt
        scores = products / 4.0
        weights = scores.softmax(dim=-2)
        out = weights @ v
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((B, H, S, D), generator=rng(2)),
    ]


# The program ends here. The rest runs it.
BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False, compiled=False):
    module = (module.double() if exact else module).train(False)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    call = torch.compile(module, backend=BACKEND, dynamic=False) if compiled else module
    args = [double(a) if exact else a for a in inputs()]
    out = call(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {n: v.detach() for n, v in values.items()}


def shows_bug():
    eager, exact, compiled, wrong = run(Module()), run(Module(), exact=True), run(Module(), compiled=True), False
    largest = lambda v: max(v.abs().nan_to_num(torch.inf).tolist(), default=0.0)
    for name, e in eager.items():
        e, x, c = e.double(), exact[name].double(), compiled[name].double()
        counts = e.isfinite() & x.isfinite()
        scale, off_eager, off = (largest(v[counts]) for v in (x, e - x, c - x))
        # Eager's error may be small by luck: 8 units in the last place of the largest value count as no error.
        is_wrong = off > 10 * off_eager + 8 * torch.finfo(torch.float32).eps * scale
        wrong |= is_wrong
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, {BACKEND} {off:.2g}{'; wrong' * is_wrong}")
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)
