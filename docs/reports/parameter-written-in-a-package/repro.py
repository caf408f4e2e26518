"""[AOTInductor] a package of a module that writes to a parameter: its first call raises ValueError, leaves has length 3 but the spec holds 2 items

Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import sys, traceback

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((2,), generator=rng(1)))

    def forward(self, x):
        self.weight.mul_(x)
        out = x.exp()
        return out, self.weight


def inputs():
    return [
        torch.randn((2,), generator=rng(0)),
    ]


# The program ends here; what follows runs it and compares with float64.
from torch._dynamo.utils import same
from torch._inductor import config

BACKEND = "aot_inductor"
config.fallback_random = True
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False, backend=None):
    module = module.train(False)
    module = module.double() if exact else module
    call = None if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    if call is None:
        program = torch.export.export(module, tuple(args))
        call = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
    out = call(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    values |= {f"{n} afterwards": a for n, a in [*zip(["x"], args), *module.named_buffers()]}
    return {name: value.detach() for name, value in values.items()}


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
