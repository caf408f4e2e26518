# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU gives wrong gradients for a row whose whole additive mask is the dtype's lowest number (flash backend)

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

B, H, S, T, D = 1, 1, 2, 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    without_gradient = ['mask']

    def forward(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
        torch.full((S, T), -3.4028234663852886e+38),
    ]


class RegressionTest(unittest.TestCase):
    def test_flash_backward_of_a_filled_row(self):
        def run(call, double=False):
            given = [x.double() for x in inputs()] if double else inputs()
            given[0].requires_grad_()
            given[1].requires_grad_()
            given[2].requires_grad_()
            out = call(*given)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))
            return given[0].grad

        actual = run(Module())
        with sdpa_kernel(SDPBackend.MATH):
            exact = run(Module().double(), double=True)
        off = lambda value: f"{(value - exact).abs().max():.2g}"
        print(f"float64 up to {exact.abs().max():.2g}; off by: eager {off(actual)}")
        # atol: half of this bug's error, 1.8
        torch.testing.assert_close(actual.double(), exact, atol=0.9, rtol=0, equal_nan=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the number of threads selects kernels and splits sums
    result = unittest.main(exit=False).result
    sys.exit(1 if result.failures else 125 if result.errors else 0)
