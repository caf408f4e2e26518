# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU writes a wrong result for a query whose rows overlap in memory (flash backend)

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: wrong result
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
from torch import nn

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


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_flash_overlapping_rows(self):
        module = WithKernel().eval()
        actual = module(*inputs())
        exact = Module().eval().double()
        expected = exact(*[x.double() for x in inputs()])
        # atol: 10 times eager's error against float64, 0.0e+00,
        # and 8 units in the last place of the largest value, 0.66 in float32
        self.assertEqual(actual.double(), expected, atol=6.3e-07, rtol=0)


if __name__ == "__main__":
    run_tests()
