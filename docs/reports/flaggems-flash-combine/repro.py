"""attention kernel kernels.adapters.flaggems:flash: NaN or infinity where S > 1

Runs the module in float64, in eager, and with kernels.adapters.flaggems:flash. Exits with 0 without the bug, 125 if it
can't run, 1 with the bug: where float64 and eager are finite, an error is more than 4 times eager's largest plus 8 eps of
bfloat16 times the largest magnitude of its tensor, or memory beside what it allocates is written.
"""
import os, sys

sys.path.insert(0, os.getcwd())
try:
    import torch
    from kernels.adapters.flaggems import flash as attend
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}; run it where kernels.adapters.flaggems can be imported", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

B, S, T, D, G, H = 1, 2, 256, 64, 1, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y, z):
        kt = y.transpose(-2, -1)
        scores = x @ kt
        probs = scores.softmax(dim=-1)
        out = probs @ z
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)).to(torch.bfloat16).transpose(-2, -3).contiguous().transpose(-2, -3),
        torch.randn((B, G, T, D), generator=rng(1)).to(torch.bfloat16).transpose(-2, -3).contiguous().transpose(-2, -3),
        torch.randn((B, G, T, D), generator=rng(2)).to(torch.bfloat16).transpose(-2, -3).contiguous().transpose(-2, -3),
    ]


class WithKernel(Module):
    def forward(self, x, y, z):
        out = attend(x, y, z, scale=1.0)
        return out


# The program ends here; what follows runs it and compares with float64.
BORDER, buffers = 1 << 16, []
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def bordered(allocate, keep):  # memory between borders of bytes 255, which it holds as well until it is written: NaN
    def allocated(*args, **kwargs):
        value = allocate(*args, **kwargs)
        size, content = value.untyped_storage().nbytes(), value.clone()
        whole = torch.full((size + 2 * BORDER,), 255, dtype=torch.uint8, device=value.device)
        value.set_(whole.untyped_storage(), BORDER // value.element_size(), value.shape, value.stride())
        buffers.append((f"{allocate.__name__} of shape {list(value.shape)}", whole, BORDER + size))
        return value.copy_(content) if keep else value
    return allocated


def run(module, exact=False):
    module, args = module.to("cuda").train(False), [a.to("cuda") for a in inputs()]
    if exact:
        module, args = module.double(), [double(a) for a in args]
    torch.manual_seed(0)
    with torch.set_grad_enabled(False):
        out = module(*args)
        values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    eager, exact, good = run(Module()), run(Module(), exact=True), True
    for name in ["empty", "empty_like", "empty_strided", "zeros", "zeros_like", "new_empty", "new_zeros"]:
        home = torch.Tensor if name.startswith("new_") else torch
        setattr(home, name, bordered(getattr(home, name), keep="zeros" in name))
    kernel = run(WithKernel())
    for name, e in eager.items():
        x, c = exact[name].double(), kernel[name].double()
        ok = e.isfinite() & x.isfinite()
        sizes = [v[ok].abs().nan_to_num(torch.inf).tolist() for v in (x, e.double() - x, c - x)]
        scale, off_eager, off = (max(v, default=0.0) for v in sizes)
        good &= bool(off <= 4 * off_eager + 8 * torch.finfo(torch.bfloat16).eps * scale)
        print(f"{name}: values up to {scale:.2g}; error: eager {off_eager:.2g}, kernel {off:.2g}")
    for name, whole, end in buffers:
        wrote = int((whole[:BORDER] != 255).sum() + (whole[end:] != 255).sum())
        good &= not wrote
        print(f"wrote {wrote} bytes beside torch.{name}\n" if wrote else "", end="")
    return good


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
