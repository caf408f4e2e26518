"""scaled_dot_product_attention on CUDA raises RuntimeError, query is not correctly aligned or no kernel found, where rows are padded (memory-efficient backend)

Runs the module in float64, in eager, and with sdpa_efficient.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import sys, traceback
from contextlib import nullcontext

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
import torch.nn.functional as F
from torch import nn

B, H, S, T, D, V = 1, 3, 2, 5, 4, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        kt = k.permute(0, 2, 3, 1)
        scores = torch.matmul(q_t, kt)
        scores2 = scores / 8
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        scores3 = torch.where(le, scores2, torch.finfo(scores2.dtype).min)
        scores4 = scores3.contiguous()
        log_softmax = F.log_softmax(scores4, dim=-1)
        exp = log_softmax.exp()
        scaled = exp * 1
        dropout = F.dropout(scaled, 0.0, self.training)
        clone = transposed2.clone()
        product = dropout.matmul(clone)
        return product, transposed


def inputs():
    return [
        F.pad(torch.randn((B, B, S, D * H), generator=rng(0)), (0, 3))[..., :-3],
        torch.randn((B, T, H, D), generator=rng(1)),
        torch.randn((B, T, H, V), generator=rng(2)),
    ]


class WithKernel(Module):
    def forward(self, q, k, x):
        q2 = q.reshape(B, S, H, D)
        q_t = q2.transpose(-2, -3)
        transposed = k.permute(-4, -2, -3, -1)
        transposed2 = x.transpose(1, 2)
        arange = torch.arange(S, dtype=torch.int64, device=q.device)
        unsqueeze = arange.unsqueeze(-1)
        arange2 = torch.arange(T, dtype=torch.int64, device=q.device)
        le = arange2 <= unsqueeze
        product = nn.functional.scaled_dot_product_attention(q_t, transposed, transposed2, scale=0.125, attn_mask=le[None, None])
        return product, transposed


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
    backend = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]) if isinstance(module, WithKernel) else nullcontext()
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
        return False
    for name, e in eager.items():
        x, c = exact[name].double(), kernel[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        # Eager may be exact by luck: 8 eps of the largest magnitude are no error.
        good &= bool(off <= 10 * off_eager + 8 * torch.finfo(torch.float32).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
