"""[AOTAutograd] backward computes again from a buffer that forward has updated meanwhile: wrong gradient

TORCH_COMPILE_BACKEND names the backend, by default inductor.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys
from contextlib import nullcontext

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

B, G, S, E, L = 2, 3, 4, 5, 6


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 2, (), generator=rng(0)))
        self.register_buffer("weight2", torch.randn((B, G, L, E), generator=rng(1)))

    def forward(self, x, mask):
        arange = torch.arange(S, dtype=torch.int64, device=x.device)
        total = arange + self.weight
        total2 = mask + 1
        squeeze = total2.squeeze(0)
        self.weight.copy_(squeeze)
        self.weight2.index_copy_(2, total, x)
        return self.weight2


def inputs():
    return [
        torch.randn((B, G, S, E), generator=rng(2)),
        torch.randint(0, 2, (1,), generator=rng(3)),
    ]


# The program ends here; what follows runs it and compares with float64.
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


def run(module, exact=False, backend=None):
    module = module.train(True)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    args = [double(a) if exact else a for a in inputs()]
    leaves = {f"grad of {n}": a.requires_grad_() for n, a in zip(["x", "mask"], args) if a.is_floating_point()}
    leaves |= {f"grad of {n}": p for n, p in module.named_parameters()}
    casts = Float64() if exact else nullcontext()
    with casts:
        out = call(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
        outs = [o for o in values.values() if o.requires_grad]
        grads = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1000 + i)).to(o) for i, o in enumerate(outs)]
        values |= zip(leaves, torch.autograd.grad(outs, [*leaves.values()], grads, materialize_grads=True))
    values |= {f"{n} afterwards": a for n, a in [*zip(["x", "mask"], args), *module.named_buffers()]}
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
