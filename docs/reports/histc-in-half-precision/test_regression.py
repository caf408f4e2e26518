# Owner(s): ["module: sdpa"]
"""torch.histc in half precision on the CPU counts and finds bins in that dtype: counts stop at 2048 in float16, and large elements fall into bin 0

The method below is for test/test_transformers.py, class TestSDPA.
Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell.
"""
import os, sys, unittest

if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: (print(f"can't run here: {error!r}", file=sys.stderr), os._exit(125))
import torch
from torch import nn

T = 64


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = torch.histc(x, bins=400, min=0, max=400)
        return out


def inputs():
    return [
        (torch.randn((T,), generator=rng(0)) * 300.0).to(torch.float16),
    ]


class RegressionTest(unittest.TestCase):
    def test_histc_in_half_precision(self):
        with torch.no_grad():
            actual = Module().eval()(*inputs())
            exact = Module().eval().double()(*[x.double() for x in inputs()])
            off = lambda value: f"{(value - exact).abs().max():.2g}"
            print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
            # atol: half of this bug's error, 14
            torch.testing.assert_close(actual.double(), exact, atol=7, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
