"""[Inductor] rotary embedding and grouped keys in bfloat16 on CUDA: one kernel reads a buffer with padded strides, the one before wrote it without: wrong result

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

B, S, G, R, E = 1, 33, 2, 2, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, k2, k4):
        positions = torch.arange(S, dtype=torch.float32, device=k2.device)
        steps = torch.arange(E, dtype=torch.float32, device=k2.device)
        steps2 = steps * (-0.5756462732485115)
        rates = steps2.exp()
        positions2 = positions.unsqueeze(-1)
        angles = positions2 * rates
        angles2 = torch.cat([angles, angles], dim=-1)
        sin = angles2.sin()
        sin2 = sin.to(torch.bfloat16)
        k3 = k2.transpose(1, 2)
        low2 = k3[..., :E]
        high3 = k3[..., E:2 * E]
        rotated_half3 = torch.cat([high3, low2], dim=-1)
        rotated_half4 = rotated_half3 * sin2
        rotated2 = k4 + rotated_half4
        rotated3 = rotated2.unsqueeze(0)
        rotated4 = rotated3.expand(B, G, R, S, 2 * E)
        rotated5 = rotated4.reshape(B, G * R, S, 2 * E)
        return rotated5


def inputs():
    return [
        torch.randn((B, S, G, 2 * E), generator=rng(0)).to(torch.bfloat16),
        torch.randn((S, 2 * E), generator=rng(1)).to(torch.bfloat16),
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
    module = module.to("cuda").train(False)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [(double(a) if exact else a).to("cuda") for a in inputs()]
    casts = Float64() if exact else nullcontext()
    with casts:
        out = call(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
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
