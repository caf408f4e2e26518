"""scaled_dot_product_attention on CUDA reads a misaligned address where the rows of the value are padded (flash backend)

Runs the module in float64, in eager, and with sdpa_flash.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys, traceback
from contextlib import nullcontext

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # so that the traceback leads to the launch
try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
import torch.nn.functional as F
from torch import nn

B, S, T, D, V = 1, 2, 2, 16, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, v, k4, q3):
        v2 = v.permute(1, 0, 2)
        v3 = v2.unsqueeze(1)
        kt = k4.transpose(-2, -1)
        scores = q3 @ kt
        scores2 = scores / 4.0
        keep = torch.ones((S, T), dtype=torch.bool, device=v.device)
        keep2 = keep.tril()
        low = torch.full((), float("-inf"), dtype=torch.bfloat16, device=v.device)
        scores3 = torch.where(keep2, scores2, low)
        probs = F.softmax(scores3, dim=-1)
        out = torch.matmul(probs, v3)
        return out


def inputs():
    return [
        F.pad(torch.full((T, B, V), 0.02).to(torch.bfloat16), (0, 3))[..., :-3],
        torch.randn((B, 1, T, D), generator=rng(3)).to(torch.bfloat16),
        torch.randn((B, 1, S, D), generator=rng(3)).to(torch.bfloat16),
    ]


class WithKernel(Module):
    def forward(self, v, k4, q3):
        v2 = v.permute(1, 0, 2)
        v3 = v2.unsqueeze(1)
        out = nn.functional.scaled_dot_product_attention(q3, k4, v3, scale=0.25, is_causal=True)
        return out


# The program ends here; what follows runs it and compares with float64.
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


class Float64(TorchDispatchMode):  # for the reference: casts to lower precision become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(a) for a in args):
            kwargs = {**kwargs, "dtype": torch.float64}
        return tree_map(double, func(*args, **kwargs))


def convert(value, made, exact):  # what is one tensor, or shares memory, still does
    memory = value.untyped_storage()
    flat = value.as_strided([memory.nbytes() // value.element_size()], [1], 0)
    _, flat = made.setdefault((memory._cdata, value.dtype), (value, (double(flat) if exact else flat).to("cuda")))
    new = flat.new_empty(0).set_(flat.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    new.__dict__.update(value.__dict__)  # marks of dynamic sizes
    return made.setdefault(id(value), (value, new))[1]


def run(module, exact=False):
    module = module.to("cuda").train(False)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    made = {}
    args = [convert(a, made, exact) for a in inputs()]
    casts = Float64() if exact else nullcontext()
    backend = sdpa_kernel([SDPBackend.FLASH_ATTENTION]) if isinstance(module, WithKernel) else nullcontext()
    with casts, backend:
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    try:
        kernel = run(WithKernel())
    except Exception:
        traceback.print_exc()
        torch.cuda.synchronize()  # raises what the GPU says
        return False
    for name, e in eager.items():
        x, c = exact[name].double(), kernel[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        # Eager may be exact by luck: 8 eps of the largest magnitude are no error.
        good &= bool(off <= 4 * off_eager + 8 * torch.finfo(torch.bfloat16).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
