"""attention kernel kernels.adapters.flaggems:flash: NaN or infinity

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
sys.path.insert(0, os.getcwd())  # the function is imported from here
import torch
from torch import nn
from kernels.adapters.flaggems import flash as attend

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


def move(x, exact=False):  # in place and with its strides: a tensor that two calls get stays one tensor
    flat = x.data.as_strided([x.untyped_storage().nbytes() // x.element_size()], [1], 0).cuda()
    flat = flat.double() if exact and flat.is_floating_point() else flat
    x.data = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    return x


class RegressionTest(unittest.TestCase):
    def test_flaggems_flash_combine(self):
        with torch.no_grad():
            torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
            eager = Module().eval().cuda()(*[move(x) for x in inputs()])
            actual = WithKernel().eval().cuda()(*[move(x) for x in inputs()])
            exact = Module().eval().cuda().double()(*[move(x, True) for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, kernel {off(actual)}")
            assert actual[exact.isfinite()].isfinite().all()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
