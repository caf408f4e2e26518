# Owner(s): ["module: sdpa"]
"""scaled_dot_product_attention on CPU gives NaN, or 0 in half precision, for a negative scale or 0 with is_causal (flash backend)

The method below is for test/test_transformers.py, class TestSDPA.
2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: wrong in eager
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

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


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_flash_negative_scale(self):
        module = Module().eval()
        actual = module(*inputs())
        exact = Module().eval().double()
        with sdpa_kernel(SDPBackend.MATH):
            expected = exact(*[x.double() for x in inputs()])
        # atol: 0.05% of the largest value, 0.66
        self.assertEqual(actual.double(), expected, atol=3.3e-04, rtol=0)


if __name__ == "__main__":
    run_tests()
