# Owner(s): ["module: sdpa"]
"""[CPU] attention (sdpa): eager is not finite where float64 is (aten._scaled_dot_product_flash_attention_for_cpu)

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

B, H, S, D = 2, 4, 8, 16


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, S, D), generator=rng(1)),
        torch.randn((B, H, S, D), generator=rng(2)),
    ]


class RegressionTest(unittest.TestCase):
    def test_regression(self):
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
