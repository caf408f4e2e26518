"""[AOTAutograd] a buffer is written to with a tensor that needs a gradient: the second training step raises RuntimeError, backward through the graph a second time

TORCH_COMPILE_BACKEND names the backend, by default inductor.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys, traceback

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
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn((S,), generator=rng(0)))

    def forward(self, x, y):
        self.weight.copy_(x)
        out = y.exp()
        return out


def inputs():
    return [
        torch.randn((S,), generator=rng(1)),
        torch.randn((S,), generator=rng(2)),
    ]


def calls(module):
    yield inputs()
    module.train()
    given = inputs()
    with torch.enable_grad():
        yield given
    given = inputs()
    with torch.enable_grad():
        yield given


# The program ends here; what follows runs it and compares with float64.
from torch._dynamo.utils import same
from torch._inductor import config

BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
config.fallback_random = True
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def convert(value, made, exact):  # what is one tensor, or shares memory, still does
    memory = value.untyped_storage()
    flat = value.as_strided([memory.nbytes() // value.element_size()], [1], 0)
    _, flat = made.setdefault((memory._cdata, value.dtype), (value, double(flat) if exact else flat))
    new = flat.new_empty(0).set_(flat.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    new.__dict__.update(value.__dict__)  # marks of dynamic sizes
    return made.setdefault(id(value), (value, new))[1]


def run(module, exact=False, backend=None):
    module = module.train(False)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    made = {}
    found = {}
    for number, args in enumerate(calls(module), 1):
        args = [convert(a, made, exact) for a in args]
        given = zip(["x", "y"], args) if torch.is_grad_enabled() else []
        leaves = {f"grad of {n}": a.requires_grad_() for n, a in given if a.is_floating_point()}
        leaves |= {f"grad of {n}": p for n, p in module.named_parameters()}
        out = call(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
        outs = [o for o in values.values() if o.requires_grad]
        grads = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1000 + i)).to(o) for i, o in enumerate(outs)]
        if outs and torch.is_grad_enabled():
            torch.autograd.backward(outs, grads)
            values |= {n: torch.zeros_like(a) if a.grad is None else a.grad for n, a in leaves.items()}
        values |= {f"{n} afterwards": a for n, a in [*zip(["x", "y"], args), *module.named_buffers()]}
        found |= {f"call {number}: {name}": v.detach().clone() for name, v in values.items()}
    return found


def test_fn() -> bool:
    torch._dynamo.reset()
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    try:
        compiled = run(Module(), backend=BACKEND)
    except Exception:
        traceback.print_exc()
        return False
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
