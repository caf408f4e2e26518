"""[AOTAutograd] nn.TransformerEncoderLayer under autocast, fast path: compiled gives float32, eager bfloat16

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

B, H, S, D, M = 1, 2, 1, 1, 1


def rng(seed):
    return torch.Generator().manual_seed(seed)


def set_weights(layer, seed):
    generator = rng(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.size(-1) ** -0.5, generator=generator)
    return layer


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = set_weights(nn.TransformerEncoderLayer(D * H, H, M, dropout=0.0, batch_first=True), 0)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = self.out(x)
        return out


def inputs():
    return [
        torch.randn((B, S, D * H), generator=rng(0)),
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
    module = module.train(False)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    casts = Float64() if exact else nullcontext()
    with casts:
        out = call(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    torch._dynamo.reset()
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    compiled = run(Module(), backend=BACKEND)
    # Dimensions from the outermost in memory to the innermost.
    order = lambda v: sorted((d for d in range(v.dim()) if v.size(d) > 1), key=lambda d: (-v.stride(d), d))
    forms = [{n: (v.dtype, [*v.shape], order(v)) for n, v in values.items()} for values in (eager, compiled)]
    differ = [n for n in {**forms[0], **forms[1]} if forms[0].get(n) != forms[1].get(n)]
    show = lambda v: "nothing" if v is None else f"{v.dtype} {[*v.shape]} with strides {v.stride()}"
    for name in differ:
        print(f"{name}: eager {show(eager.get(name))}, compiled {show(compiled.get(name))}")
    if differ:
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
