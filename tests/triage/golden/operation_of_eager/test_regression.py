# Owner(s): ["module: sdpa"]
"""[CPU] attention (sdpa): eager is not finite where float64 is (aten._scaled_dot_product_flash_attention_for_cpu)

The method below is for test/test_transformers.py, class TestSDPA.
Releases: fails in 2.13.0
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch
import torch.nn.functional as F
from torch import nn

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


class RegressionTest(TestCase):
    @torch.no_grad()
    def test_regression(self):
        module = Module().eval()
        actual = module(*inputs())
        exact = Module().eval().double()
        with sdpa_kernel(SDPBackend.MATH):
            expected = exact(*[x.double() for x in inputs()])
        # atol: 0.05% of the largest value, 1.9
        self.assertEqual(actual.double(), expected, atol=9.5e-04, rtol=0)


if __name__ == "__main__":
    run_tests()
