# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU gives NaN, or 0 in half precision, for a negative scale or 0 with is_causal (flash backend)

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

T = 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        out = F.scaled_dot_product_attention(x, y, y, is_causal=True, scale=-1.0)
        return out


def inputs():
    return [
        torch.randn((1, 1, 1, T), generator=rng(0)),
        torch.randn((1, 1, T, T), generator=rng(1)),
    ]


class RegressionTest(unittest.TestCase):
    def test_flash_negative_scale(self):
        with torch.no_grad():
            actual = Module().eval()(*inputs())
            with sdpa_kernel(SDPBackend.MATH):
                exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
            assert actual[exact.isfinite()].isfinite().all()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
