"""attention kernel benchmarks.defects:statistics_without_mask: wrong gradient dq

Runs the module in float64, in eager, and with benchmarks.defects:statistics_without_mask.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys

sys.path.insert(0, os.getcwd())
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton's kernels are defined, so before the import
try:
    import torch
    from benchmarks.defects import statistics_without_mask as attend
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}; run it where benchmarks.defects can be imported", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

H, K, S, T, D = 2, 2, 65, 65, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        kt = k.transpose(-2, -1)
        scores = q @ kt
        scores2 = scores * 0.25
        probs = scores2.softmax(dim=-1)
        out = probs @ v
        return out


def inputs():
    return [
        torch.randn((1, H, S, D), generator=rng(0)),
        torch.randn((1, K, T, D), generator=rng(1)),
        torch.randn((1, K, T, D), generator=rng(2)),
    ]


class WithKernel(Module):
    def forward(self, q, k, v):
        out = attend(q, k, v, scale=0.25)
        return out


# The program ends here; what follows runs it and compares with float64.
BORDER, buffers = 1 << 16, []
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def add_borders(allocate, keep):  # memory between borders of bytes 255, which it holds as well until it is written: NaN
    def allocate_within(*args, **kwargs):
        value = allocate(*args, **kwargs)
        size, content = value.untyped_storage().nbytes(), value.clone()
        whole = torch.full((size + 2 * BORDER,), 255, dtype=torch.uint8, device=value.device)
        value.set_(whole.untyped_storage(), BORDER // value.element_size(), value.shape, value.stride())
        buffers.append((f"{allocate.__name__} of shape {list(value.shape)}", whole, BORDER + size))
        return value.copy_(content) if keep else value
    return allocate_within


def run(module, exact=False):
    module = module.train(True)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    args = [double(a) if exact else a for a in inputs()]
    leaves = {f"grad of {n}": a.requires_grad_() for n, a in zip(["q", "k", "v"], args) if a.is_floating_point()}
    out = module(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    outs = [o for o in values.values() if o.requires_grad]
    grads = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1000 + i)).to(o) for i, o in enumerate(outs)]
    values |= zip(leaves, torch.autograd.grad(outs, [*leaves.values()], grads, materialize_grads=True))
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    for name in ["empty", "empty_like", "empty_strided", "zeros", "zeros_like", "new_empty", "new_zeros"]:
        home = torch.Tensor if name.startswith("new_") else torch
        setattr(home, name, add_borders(getattr(home, name), keep="zeros" in name))
    kernel = run(WithKernel())
    top = max((x.abs().nan_to_num(0, 0, 0).max() for n, x in exact.items() if "grad" in n and x.numel()), default=0.0)
    for name, e in eager.items():
        x, c = exact[name].double(), kernel[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        # Eager may be exact by luck: 8 eps of the largest magnitude of all gradients are no error.
        good &= bool(off <= 10 * off_eager + 8 * torch.finfo(torch.float32).eps * (top if name.startswith("grad") else scale))
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    for name, whole, end in buffers:
        wrote = int((whole[:BORDER] != 255).sum() + (whole[end:] != 255).sum())
        good &= not wrote
        print(f"wrote {wrote} bytes beside torch.{name}\n" if wrote else "", end="")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
