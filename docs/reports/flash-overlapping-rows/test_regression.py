# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU writes a wrong result for a query whose rows overlap in memory (flash backend)

The method below is for test/test_transformers.py, class TestSDPA.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

S, D = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, k):
        q = x.unfold(2, D, 1)
        kt = k.transpose(-2, -1)
        products = q @ kt
        scores = products * 0.5
        weights = scores.softmax(dim=-1)
        out = weights @ k
        return out


def inputs():
    return [
        torch.randn((1, 1, D + S - 1), generator=rng(0)),
        torch.randn((1, 1, 1, D), generator=rng(1)),
    ]


class WithKernel(Module):
    @sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    def forward(self, x, k):
        q = x.unfold(2, D, 1)
        out = nn.functional.scaled_dot_product_attention(q, k, k, scale=0.5)
        return out


class RegressionTest(unittest.TestCase):
    def test_flash_overlapping_rows(self):
        with torch.no_grad():
            eager = Module().eval()(*inputs())
            actual = WithKernel().eval()(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(eager)}, kernel {off(actual)}")
            # atol: half of this bug's error, 0.21
            torch.testing.assert_close(actual.double(), exact, atol=0.1, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
