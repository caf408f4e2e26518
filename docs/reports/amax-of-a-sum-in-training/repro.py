"""[Inductor] amax or amin of a half-precision result in training: the gradient is NaN

TORCH_COMPILE_BACKEND names the backend, by default inductor.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

S = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        total = x + y
        out = total.amax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(0)).to(torch.float16),
        torch.randn((S,), generator=rng(1)).to(torch.float16),
    ]


# The program ends here; what follows runs it and compares with float64.
from torch._dynamo.utils import same
from torch._inductor import config

BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
config.fallback_random = True
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False, backend=None):
    module = module.train(True)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    args = [double(a) if exact else a for a in inputs()]
    leaves = {f"grad of {n}": a.requires_grad_() for n, a in zip(["x", "y"], args) if a.is_floating_point()}
    out = call(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    outs = [o for o in values.values() if o.requires_grad]
    grads = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1000 + i)).to(o) for i, o in enumerate(outs)]
    values |= zip(leaves, torch.autograd.grad(outs, [*leaves.values()], grads, materialize_grads=True))
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    torch._dynamo.reset()
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    compiled = run(Module(), backend=BACKEND)
    for name, e in eager.items():
        x, c = exact[name].double(), compiled[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        agrees = same(e, compiled[name], fp64_ref=exact[name], equal_nan=True)
        precision = torch.finfo(e.dtype).eps ** 0.5 if e.is_floating_point() else 0.0
        # `same` averages over the tensor; a single wrong row can escape it.
        good &= agrees and off <= max(32 * off_eager, precision * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, {BACKEND} {off:.2g}; same: {agrees}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
