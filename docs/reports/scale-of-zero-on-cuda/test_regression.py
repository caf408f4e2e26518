# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CUDA gives NaN for a scale of 0 or less (cuDNN and flash backends)

The method below is for test/test_transformers.py, class TestSDPA.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

B, H, S, T, D = 1, 2, 8, 16, 32


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, scale=0.0)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)).to(torch.float16),
        torch.randn((B, H, T, D), generator=rng(1)).to(torch.float16),
        torch.randn((B, H, T, D), generator=rng(2)).to(torch.float16),
    ]


def move(x, exact=False):  # in place and with its strides: a tensor that two calls get stays one tensor
    flat = x.data.as_strided([x.untyped_storage().nbytes() // x.element_size()], [1], 0).cuda()
    flat = flat.double() if exact and flat.is_floating_point() else flat
    x.data = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    return x


class RegressionTest(unittest.TestCase):
    def test_scale_of_zero_on_cuda(self):
        with torch.no_grad():
            actual = Module().eval().cuda()(*[move(x) for x in inputs()])
            with sdpa_kernel(SDPBackend.MATH):
                exact = Module().eval().cuda().double()(*[move(x, True) for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
            assert actual[exact.isfinite()].isfinite().all()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
